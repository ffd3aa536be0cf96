"""Build deep stacks and look along them: what can be read, how large it is, what gradient comes."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer_block.ablate import without
from transformer_block.attention import causal_mask
from transformer_block.language_model import LanguageModel
from transformer_block.toy_language import toy_language
from transformer_block.train import Recipe, toy_config, train

# kind → the settings it is built with, and the parts that are then taken out
KINDS: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "pre-norm": ({}, ()),
    "post-norm": ({"norm_place": "post"}, ()),
    "no norms": ({}, ("norms in blocks",)),
    "no residual": ({}, ("residual",)),
    "no residual, no norms": ({}, ("norms in blocks", "residual")),
}


def deep_model(
    kind: str, n_layers: int, *, seed: int, d_model: int = 32, n_heads: int = 2
) -> LanguageModel:
    """Return an untrained model of the toy language with this many blocks of one kind.

    The kinds are those of `KINDS`; the norm before W_LM stays where Pre-Norm has it.

    Raises:
        ValueError: for an unknown kind.
    """
    if kind not in KINDS:
        raise ValueError(f"the kinds of stack are {', '.join(KINDS)}; not {kind!r}")
    changes, parts = KINDS[kind]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sizes = {"d_model": d_model, "n_heads": n_heads, "d_ff": 4 * d_model}
        model = LanguageModel(toy_config(n_layers=n_layers, **sizes, **changes))
    for part in parts:
        model = without(model, part)
    return model


@torch.no_grad()
def streams(
    model: LanguageModel, X: Float[Tensor, "B n d_model"]
) -> list[Float[Tensor, "B n d_model"]]:
    """Send X through the blocks, causally; return X and what stands in the stream after each."""
    mask = causal_mask(X.shape[1])
    found = [X]
    for block in model.blocks:
        found.append(block(found[-1], mask))
    return found


def read_out(
    features: Float[Tensor, "samples d_features"], target: Float[Tensor, "samples d_target"]
) -> float:
    """Return how much of the target a linear reader finds in the features: held-out R².

    Ridge regression on standardised features: fitted on one half of the samples, its strength
    chosen on a quarter, R² = 1 − error / variance taken on the last quarter, at least 0. Numbers
    are those of the features' own precision: what rounding has taken is gone.
    """
    Y = target.double()
    X = (features - features.mean(dim=0)).double()
    X = X / X.std(dim=0).clamp_min(1e-30)
    half, quarter = len(X) // 2, 3 * len(X) // 4
    fit, choose, judge = slice(half), slice(half, quarter), slice(quarter, None)
    mean = Y[fit].mean(dim=0)
    gram, cross = X[fit].mT @ X[fit] / half, X[fit].mT @ (Y[fit] - mean) / half

    def r2(W: Tensor, part: slice) -> float:
        error = (Y[part] - mean - X[part] @ W).square().sum()
        return 1 - float(error / (Y[part] - Y[part].mean(dim=0)).square().sum())

    eye = torch.eye(X.shape[1], dtype=torch.float64)
    readers = [torch.linalg.solve(gram + 10.0**power * eye, cross) for power in range(-8, 2)]
    return max(0.0, r2(max(readers, key=lambda W: r2(W, choose)), judge))


def identity_part(model: LanguageModel, X: Float[Tensor, "B n d_model"]) -> float:
    """Return how much of the identity is in the whole stack's Jacobian: 1 if all of it is.

    trace(∂X^(L) / ∂X^(0)) / d_model of the last token, averaged over the batch.
    """
    X = X.detach().requires_grad_()
    out = X
    for block in model.blocks:
        out = block(out, causal_mask(X.shape[1]))
    d_model = X.shape[-1]
    rows = [
        torch.autograd.grad(out[:, -1, i].sum(), X, retain_graph=True)[0][:, -1, i]
        for i in range(d_model)
    ]
    return float(torch.stack(rows).sum(dim=0).mean()) / d_model


def straightness(x: Sequence[int], y: Sequence[float]) -> float:
    """Return how well a straight line fits: R² of y against x, 1 where it is one."""
    return float(torch.corrcoef(torch.tensor([list(x), list(y)], dtype=torch.float64))[0, 1] ** 2)


def gradients_by_block(
    model: LanguageModel, *, seed: int, steps: Sequence[int] = (0, 5, 50), lr: float = 3e-3
) -> dict[int, list[float]]:
    """Train; return the gradient's length in each block, first to last, at some of the steps.

    The length is taken over all weights of a block, of the loss in nats per token on a batch of
    32 sentences; the rate is constant, without warm-up and without clipping.

    Raises:
        ValueError: if the loss stops being a number.
    """
    found: dict[int, list[float]] = {}

    def keep(step: int, loss: float) -> None:
        if step in steps:
            found[step] = [_length(block) for block in model.blocks]

    recipe = Recipe(
        steps=max(steps) + 1, batch_size=32, lr=lr, warm_up=0.0, lr_last=1.0, clip=math.inf
    )
    train(model, toy_language(), seed=seed, recipe=recipe, on_step=keep)
    return found


def _length(block: nn.Module) -> float:
    grads = [p.grad.norm() for p in block.parameters() if p.grad is not None]
    return float(torch.stack(grads).norm())
