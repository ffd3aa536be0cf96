"""Take norms out of deep models, and see whether they still start to learn."""

from contextlib import suppress

import torch

from transformer_block.ablate import without
from transformer_block.language_model import LanguageModel
from transformer_block.toy_language import toy_language
from transformer_block.train import Recipe, toy_config, train


def norms_out(
    removed: str | None, n_layers: int, *, seed: int, weights: float = 1.0
) -> LanguageModel:
    """Return an untrained, narrow, deep model of the toy language without some of its norms.

    `removed` is a part of `ablate.without`: "norms in blocks", "final norm" or "all norms"; None
    takes out nothing. Every matrix in the blocks is drawn as the book draws it, times `weights`.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LanguageModel(toy_config(n_layers=n_layers, d_model=32, n_heads=2, d_ff=128))
    with torch.no_grad():
        for parameter in model.blocks.parameters():
            if parameter.ndim == 2:
                parameter.mul_(weights)
    return model if removed is None else without(model, removed)


def first_losses(
    removed: str | None, n_layers: int, *, seed: int, weights: float = 1.0, steps: int = 60
) -> list[float]:
    """Start to train such a model; return the loss of each step, in nats per token.

    The rate is constant from the first step, without warm-up. Where training breaks, because the
    gradient is no number any more, the list ends early.
    """
    losses: list[float] = []
    model = norms_out(removed, n_layers, seed=seed, weights=weights)
    recipe = Recipe(steps=steps, batch_size=32, lr=3e-3, warm_up=0.0, lr_last=1.0)
    with suppress(ValueError):  # that is how train says that it broke
        train(
            model,
            toy_language(),
            seed=seed,
            recipe=recipe,
            on_step=lambda step, loss: losses.append(loss),
        )
    return losses
