"""Build deep stacks of one kind, look along them, and start to train them."""

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from transformer_block.ablation import without
from transformer_block.attention import causal_mask
from transformer_block.block import PreNormBlock
from transformer_block.config import ModelConfig
from transformer_block.experiments.seeds import seeded
from transformer_block.language import toy_language
from transformer_block.language_model import LanguageModel, standard_block
from transformer_block.multi_head import KeyValueCache
from transformer_block.training import Recipe, toy_config, train

# kind → the parts that are taken out of a Pre-Norm model; two kinds are other blocks
KINDS: dict[str, tuple[str, ...]] = {
    "pre-norm": (),
    "post-norm": (),
    "adds norm": (),
    "no norms in blocks": ("norms in blocks",),
    "no final norm": ("final norm",),
    "no norms": ("all norms",),
    "no residual": ("residual",),
    "no residual, no norms in blocks": ("norms in blocks", "residual"),
}


class AddsNormBlock(PreNormBlock):
    """Add Norm(X) where Pre-Norm adds X: H = Norm(X) + MHA(Norm(X)). A mistake, kept for study."""

    def forward(
        self,
        X: Float[Tensor, "B n d_model"],
        mask: Bool[Tensor, "n n_k"] | None = None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "B n d_model"]:
        """Return X', of the shape of X."""
        Y = self.norm_mha(X)
        H = Y + self.mha(Y, mask, cache)
        Y = self.norm_ffn(H)
        return Y + self.ffn(Y)


def adds_norm_block(config: ModelConfig) -> AddsNormBlock:
    """Build the mistaken block in the sizes of a config."""
    return AddsNormBlock(config.d_model, config.n_heads, config.d_ff)


def deep_model(
    kind: str,
    n_layers: int,
    *,
    seed: int,
    d_model: int = 32,
    n_heads: int = 2,
    scale: float = 1.0,
    std: float | None = None,
) -> LanguageModel:
    """Return an untrained model of the toy language with this many blocks of one of the `KINDS`.

    d_ff is 4 d_model. Weights are drawn as the book draws them, and the same ones for every kind;
    each matrix in the blocks is then multiplied by `scale`. With `std` every matrix of the model
    is drawn from N(0, std²) instead, and every bias is 0.

    Raises:
        ValueError: for an unknown kind.
    """
    if kind not in KINDS:
        raise ValueError(f"the kinds of stack are {', '.join(KINDS)}; not {kind!r}")
    sizes = {"d_model": d_model, "n_heads": n_heads, "d_ff": 4 * d_model, "n_layers": n_layers}
    place = "post" if kind == "post-norm" else "pre"
    block = adds_norm_block if kind == "adds norm" else standard_block
    with seeded(seed):
        model = LanguageModel(toy_config(**sizes, norm_place=place), block=block)
        if std is not None:
            _draw_normal(model, std)
    with torch.no_grad():
        for parameter in model.blocks.parameters():
            if parameter.ndim == 2:
                parameter.mul_(scale)
    for part in KINDS[kind]:
        model = without(model, part)
    return model


@torch.no_grad()
def _draw_normal(model: nn.Module, std: float) -> None:
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=std)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)


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

    Ridge regression, with features standardised and the reader fitted on one half of the samples;
    its strength is chosen on a quarter, R² = 1 − error / variance taken on the last one, at least
    0. Numbers are those of the features' own precision: what rounding has taken is gone.
    """
    Y, X = target.double(), features.double()
    half, quarter = len(X) // 2, 3 * len(X) // 4
    fit, choose, judge = slice(half), slice(half, quarter), slice(quarter, None)
    # in double precision: a feature that never changes becomes 0, exactly
    X = (X - X[fit].mean(dim=0)) / X[fit].std(dim=0).clamp_min(1e-30)
    mean = Y[fit].mean(dim=0)
    gram, cross = X[fit].mT @ X[fit] / half, X[fit].mT @ (Y[fit] - mean) / half

    def r2(W: Tensor, part: slice) -> float:
        error = (Y[part] - mean - X[part] @ W).square().sum()
        return 1 - float(error / (Y[part] - Y[part].mean(dim=0)).square().sum())

    eye = torch.eye(X.shape[1], dtype=torch.float64)
    readers = [torch.linalg.solve(gram + 10.0**power * eye, cross) for power in range(-8, 2)]
    return max(0.0, r2(max(readers, key=lambda W: r2(W, choose)), judge))


def identity_share(
    model: LanguageModel, X: Float[Tensor, "B n d_model"], behind: Collection[int]
) -> list[float]:
    """Return how much of the identity is left from X to the stream behind 1, 2 … blocks.

    That is trace(∂X^(l) / ∂X^(0)) / d_model of the last token, averaged over the batch: 1 where
    every feature still passes one to one, on average. `behind` says behind which blocks to look.
    """
    B, n, d_model = X.shape
    # d_model copies of each sequence: copy j tells the derivative of feature j
    X_0 = X.detach().repeat_interleave(d_model, dim=0).requires_grad_()

    def of_own(tokens: Float[Tensor, "copies d_model"]) -> Float[Tensor, "B d_model"]:
        return tokens.view(B, d_model, d_model).diagonal(dim1=1, dim2=2)

    X, mask, shares = X_0, causal_mask(n), []
    for depth, block in enumerate(model.blocks, 1):
        X = block(X, mask)
        if depth in behind:
            (slope,) = torch.autograd.grad(of_own(X[:, -1]).sum(), X_0, retain_graph=True)
            shares.append(float(of_own(slope[:, -1]).mean()))
    return shares


def straightness(x: Sequence[int], y: Sequence[float]) -> float:
    """Return how well a straight line fits: R² of y against x, 1 where it is one."""
    return float(torch.corrcoef(torch.tensor([list(x), list(y)], dtype=torch.float64))[0, 1] ** 2)


class FirstSteps(NamedTuple):
    """Hold how a training began."""

    losses: list[float]  # nats per token at each step; fewer than asked for where training broke
    gradients: dict[int, list[float]]  # step → length of the gradient by block, first to last


def first_steps(
    model: LanguageModel,
    *,
    seed: int,
    steps: int,
    look_at: Collection[int] = (),
    clip: float = math.inf,
) -> FirstSteps:
    """Start to train a model in place, on batches of 32 sentences at the constant rate 3e-3.

    There is no warm-up, and no clipping unless `clip` names the longest gradient. A block's
    gradient is that of all its weights together, as the step used it. Where training breaks,
    because a loss or a gradient is no number any more, the result ends early.

    Raises:
        ValueError: if not even the first step can be made.
    """
    found = FirstSteps([], {})

    def keep(step: int, loss: float) -> None:
        found.losses.append(loss)
        if step in look_at:
            found.gradients[step] = [_length_of_gradient(block) for block in model.blocks]

    recipe = Recipe(steps=steps, batch_size=32, lr=3e-3, warm_up=0.0, lr_last=1.0, clip=clip)
    try:
        train(model, toy_language(), seed=seed, recipe=recipe, on_step=keep)
    except ValueError:  # that is how train says that it broke
        if not found.losses:
            raise
    return found


def _length_of_gradient(block: nn.Module) -> float:
    grads = [p.grad.norm() for p in block.parameters() if p.grad is not None]
    return float(torch.stack(grads).norm())
