"""Put the norm before, behind or where a misread formula has it, and look at deep stacks."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from transformer_block.attention import causal_mask
from transformer_block.block import PostNormBlock, PreNormBlock
from transformer_block.language_model import LanguageModel
from transformer_block.multi_head import KeyValueCache
from transformer_block.toy_language import toy_language
from transformer_block.train import Recipe, toy_config, train


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


BLOCKS: dict[str, type[PreNormBlock]] = {
    "pre": PreNormBlock,
    "post": PostNormBlock,
    "adds norm": AddsNormBlock,
}


def identity_share(
    kind: str, depths: Sequence[int], *, seed: int, n: int = 7, d_model: int = 24, n_heads: int = 3
) -> list[float]:
    """Return how much of the identity is left from X to the stream behind 1, 2 … blocks.

    That is the trace of ∂X^(l)/∂X^(0) of the last token, divided by d_model: 1 where every feature
    still passes one to one, on average. The stack is untrained, its input normal.
    """
    torch.manual_seed(seed)
    stack = nn.ModuleList(BLOCKS[kind](d_model, n_heads, 4 * d_model) for _ in range(max(depths)))
    # d_model copies of one sequence: copy j tells the derivative of feature j
    X_0 = torch.randn(1, n, d_model).repeat(d_model, 1, 1).requires_grad_()
    X, mask, shares = X_0, causal_mask(n), {}
    for depth, block in enumerate(stack, 1):
        X = block(X, mask)
        if depth in depths:
            own = X[:, -1].diagonal().sum()
            (slope,) = torch.autograd.grad(own, X_0, retain_graph=True)
            shares[depth] = float(slope[:, -1].diagonal().mean())
    return [shares[depth] for depth in depths]


def first_steps(
    kind: str, n_layers: int, *, seed: int, std: float | None = None, steps: int = 50
) -> tuple[list[float], list[float]]:
    """Start to train a stack of one kind; return the loss of each step, and the last gradients.

    The losses are in nats per token; the gradients are one length for each block, first to last.
    The rate is constant from the first step: no warm-up, and no clipping. With `std` every matrix
    is drawn from N(0, std²) and every bias is 0, instead of the book's `initialise`.

    Raises:
        ValueError: if the loss stops being a number.
    """
    torch.manual_seed(seed)
    place = "post" if kind == "post" else "pre"  # the misread block ends with a norm, too
    model = LanguageModel(
        toy_config(n_layers=n_layers, d_model=32, n_heads=2, d_ff=128, norm_place=place)
    )
    if kind == "adds norm":
        for block in model.blocks:
            block.__class__ = AddsNormBlock
    if std is not None:
        _draw_small(model, std)
    recipe = Recipe(steps=steps, batch_size=32, lr=3e-3, warm_up=0.0, lr_last=1.0, clip=math.inf)
    losses = train(model, toy_language(), seed=seed, recipe=recipe).losses.tolist()
    return losses, [_length(block) for block in model.blocks]


@torch.no_grad()
def _draw_small(model: nn.Module, std: float) -> None:
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=std)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)


def _length(block: nn.Module) -> float:
    grads = [p.grad.norm() for p in block.parameters() if p.grad is not None]
    return float(torch.stack(grads).norm())
