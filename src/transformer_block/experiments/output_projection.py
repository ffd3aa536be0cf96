"""Chapter 02: a learned W_O, and each head writing to its own band only."""

import torch

from transformer_block.experiments.recorded import recorded
from transformer_block.language import ToyLanguage, toy_language
from transformer_block.language_model import LanguageModel
from transformer_block.multi_head import MultiHeadAttention
from transformer_block.training import Job, Recipe, train

KINDS = ("learned", "identity")


def fix_W_O(model: LanguageModel) -> LanguageModel:
    """Set every W_O to the identity and keep it there, in place: O = Concat(Z_1 … Z_h).

    Raises:
        ValueError: if the concat is not as wide as the stream; there is no identity to set then.
    """
    for part in model.modules():
        if not isinstance(part, MultiHeadAttention):
            continue
        W = part.W_O.weight
        if W.shape[0] != W.shape[1]:
            raise ValueError(
                f"without W_O the concat must be as wide as the stream; h · d_head is {W.shape[1]} "
                f"and d_model is {W.shape[0]}"
            )
        with torch.no_grad():
            W.copy_(torch.eye(len(W)))
        W.requires_grad_(False)
    return model


def excess_with(W_O: str, *, seed: int, steps: int, language: ToyLanguage) -> float:
    """Train the standard model with W_O learned or the identity; return nats above the floor.

    Raises:
        ValueError: for another kind of W_O.
    """
    if W_O not in KINDS:
        raise ValueError(f"W_O is {' or '.join(KINDS)} here, not {W_O!r}")
    model = Job(seed=seed).model()
    if W_O == "identity":
        fix_W_O(model)
    run = train(model, language, seed=seed, recipe=Recipe(steps=steps))
    return language.evaluate(run.model).excess


@recorded(
    settings=[
        {"W_O": "identity", "steps": 40},
        {"W_O": "learned", "steps": 400},
        {"W_O": "identity", "steps": 400},
    ],
    seeds=[71, 72, 73],
)
def learned_or_identity(seed: int, W_O: str, steps: int) -> dict[str, float]:
    """Return the excess over the language's entropy, in nats per word."""
    return {"excess": excess_with(W_O, seed=seed, steps=steps, language=toy_language())}
