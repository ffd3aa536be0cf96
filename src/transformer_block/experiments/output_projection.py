"""Chapter 02: what W_O mixes, and the same model with W_O left out."""

import torch
from jaxtyping import Float
from torch import Tensor

from transformer_block.experiments.recorded import recorded
from transformer_block.language import ToyLanguage, toy_language
from transformer_block.language_model import LanguageModel
from transformer_block.multi_head import MultiHeadAttention
from transformer_block.training import Job, Recipe, train, trained

KINDS = ("learned", "identity")


def dependence(J: Float[Tensor, "out width"], n_heads: int) -> Float[Tensor, "out h"]:
    """Return how strongly each output depends on each head: 0 is not at all, 1 is average.

    J holds the derivative of every output by every number of the reports, head after head. What is
    returned is the root mean square of the derivatives by one head's numbers, over that of all.
    """
    size = J.reshape(*J.shape[:-1], n_heads, -1).square().mean(dim=-1).sqrt()
    return size / J.square().mean().sqrt()


def shared_directions(strips: Float[Tensor, "h d_head d_model"]) -> Float[Tensor, "h h"]:
    """Return the share of each head's writing directions that another head has, too.

    0: the two subspaces are at right angles. 1: they are the same. Two random subspaces of d_head
    in d_model directions share d_head / d_model on average.
    """
    basis = torch.linalg.qr(strips.mT)[0].mT  # [h, d_head, d_model], rows of length 1
    cosines = torch.einsum("ixm,jym->ijxy", basis, basis)
    return cosines.square().sum(dim=(2, 3)) / strips.shape[1]


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
        {"W_O": "learned", "steps": 800},
        {"W_O": "identity", "steps": 800},
    ],
    seeds=[71, 72, 73, 74, 75, 76],
)
def learned_or_identity(seed: int, W_O: str, steps: int) -> dict[str, float]:
    """Return the excess over the language's entropy, in nats per word."""
    return {"excess": excess_with(W_O, seed=seed, steps=steps, language=toy_language())}


@recorded(settings=[{"steps": 800}], seeds=[21, 22, 31, 32, 33, 34])
def heads_in_W_O(seed: int, steps: int) -> dict[str, float]:
    """Return how weakly a coordinate depends on a head, and which share two heads have in common.

    `weakest` is the least dependence of any coordinate on any head, 1 being average; `least`,
    `most` and `mean` are shares of directions, over the pairs of heads in one block.
    """
    model = trained(seed=seed, steps=steps).model.double().requires_grad_(False)
    layers = [part for part in model.modules() if isinstance(part, MultiHeadAttention)]
    strips = torch.stack([mha.W_O_slices() for mha in layers])
    h = strips.shape[1]
    pairs = torch.stack([shared_directions(s) for s in strips])[:, ~torch.eye(h, dtype=torch.bool)]
    return {
        "weakest": min(dependence(mha.W_O.weight, h).min().item() for mha in layers),
        "least": pairs.min().item(),
        "most": pairs.max().item(),
        "mean": pairs.mean().item(),
    }
