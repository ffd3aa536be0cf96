"""Join a sublayer's output to the stream in three ways: add it, append it, concat and project."""

from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from transformer_block.block import PreNormBlock
from transformer_block.language_model import LanguageModel
from transformer_block.multi_head import KeyValueCache, MultiHeadAttention
from transformer_block.norm import LayerNorm

WAYS = ("add", "append", "concat and project")


class AttentionOnAll(MultiHeadAttention):
    """Read tokens of any `width` and write d_model features: W_Q, W_K and W_V are wider."""

    def __init__(self, width: int, d_model: int, n_heads: int) -> None:
        super().__init__(d_model, n_heads)
        self.W_Q, self.W_K, self.W_V = (nn.Linear(width, d_model, bias=False) for _ in range(3))

    def forward(
        self,
        X: Float[Tensor, "B n width"],
        mask: Bool[Tensor, "n n_k"] | None = None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "B n d_model"]:
        """Return what is to be appended to each token."""
        Q, K, V = self.split(self.W_Q(X)), self.split(self.W_K(X)), self.split(self.W_V(X))
        if cache is not None:
            K, V = cache.extend(K, V)
        return self.W_O(self.attend(Q, K, V, mask).transpose(1, 2).flatten(2))


class AppendBlock(nn.Module):
    """Lay each output beside the stream: H = [X, MHA(Norm(X))], X' = [H, FFN(Norm(H))].

    The sublayers write d_model features, as in a Pre-Norm block, but read all `width` of them; the
    stream is 2 d_model wider behind the block.
    """

    def __init__(self, width: int, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.norm_mha = LayerNorm(width)
        self.mha = AttentionOnAll(width, d_model, n_heads)
        self.norm_ffn = LayerNorm(width + d_model)
        self.ffn = nn.Sequential(
            nn.Linear(width + d_model, 4 * d_model), nn.GELU(), nn.Linear(4 * d_model, d_model)
        )

    def forward(
        self,
        X: Float[Tensor, "B n width"],
        mask: Bool[Tensor, "n n_k"] | None = None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "B n wider"]:
        """Return X', 2 d_model wider than X."""
        H = torch.cat([X, self.mha(self.norm_mha(X), mask, cache)], dim=-1)
        return torch.cat([H, self.ffn(self.norm_ffn(H))], dim=-1)


class ProjectBlock(nn.Module):
    """Concat, then compress: H = [X, MHA(Norm(X))] P₁, X' = [H, FFN(Norm(H))] P₂.

    P₁ and P₂ are `[2 d_model, d_model]`, drawn as any other Linear, or with `as_sum` set to two
    identities on top of each other, which is the sum X + F(X) at the start.
    """

    def __init__(self, block: PreNormBlock, as_sum: bool = False) -> None:
        super().__init__()
        self.norm_mha, self.mha = block.norm_mha, block.mha
        self.norm_ffn, self.ffn = block.norm_ffn, block.ffn
        d_model = self.mha.d_model
        self.P_mha = nn.Linear(2 * d_model, d_model, bias=False)
        self.P_ffn = nn.Linear(2 * d_model, d_model, bias=False)
        if as_sum:
            for P in (self.P_mha, self.P_ffn):
                P.weight.data.copy_(torch.eye(d_model).repeat(1, 2))

    def forward(
        self,
        X: Float[Tensor, "B n d_model"],
        mask: Bool[Tensor, "n n_k"] | None = None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "B n d_model"]:
        """Return X', of the shape of X."""
        H = self.P_mha(torch.cat([X, self.mha(self.norm_mha(X), mask, cache)], dim=-1))
        return cast(Tensor, self.P_ffn(torch.cat([H, self.ffn(self.norm_ffn(H))], dim=-1)))


def projected(model: LanguageModel, as_sum: bool = False) -> LanguageModel:
    """Let every block of a Pre-Norm model concat and project instead of adding, in place."""
    blocks = (cast(PreNormBlock, block) for block in model.blocks)
    model.blocks = nn.ModuleList(ProjectBlock(block, as_sum) for block in blocks)
    return model


def joined(way: str, n_layers: int, d_model: int, n_heads: int) -> nn.ModuleList:
    """Return blocks with d_ff = 4 d_model that join in one of the `WAYS`.

    Raises:
        ValueError: for an unknown way.
    """
    if way not in WAYS:
        raise ValueError(f"the ways to join are {', '.join(WAYS)}; not {way!r}")
    if way == "append":
        widths = range(d_model, (2 * n_layers + 1) * d_model, 2 * d_model)
        return nn.ModuleList(AppendBlock(width, d_model, n_heads) for width in widths)
    blocks = [PreNormBlock(d_model, n_heads, 4 * d_model) for _ in range(n_layers)]
    return nn.ModuleList(blocks if way == "add" else map(ProjectBlock, blocks))


def weights(way: str, n_layers: int, d_model: int) -> int:
    """Count the numbers in all matrices of such blocks; none of them is drawn."""
    with torch.device("meta"):
        blocks = joined(way, n_layers, d_model, n_heads=1)
    return sum(p.numel() for p in blocks.parameters() if p.ndim == 2)


def width(way: str, n_layers: int, d_model: int) -> int:
    """Count the features of one token behind the last of such blocks."""
    with torch.device("meta"):
        last = joined(way, n_layers, d_model, n_heads=1)[-1]
        behind = cast(LayerNorm, last.norm_ffn).gamma.numel()
    return behind + d_model if way == "append" else behind
