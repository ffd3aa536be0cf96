"""The Transformer block: communicate, then compute, and add each to the stream."""

from jaxtyping import Bool, Float
from torch import Tensor, nn

from transformer_block import _checks
from transformer_block.feed_forward import ffn_named
from transformer_block.multi_head import KeyValueCache, MultiHeadAttention
from transformer_block.norm import norm_named


class PreNormBlock(nn.Module):
    """Read a normalised copy of the stream, add to the stream itself.

    H = X + MHA(Norm(X)), X' = H + FFN(Norm(H)). What is added back is X, not Norm(X).

    `activation` is the FFN's σ, or "swiglu"; `norm` is "layer" or "rms"; `bias` gives W_Q … W_O
    biases (the plain FFN has them always, a SwiGLU never).

    Raises:
        ValueError: for sizes that do not fit, unknown names, or an X that is not a finite
            `[B, n, d_model]`.

    Source: Xiong et al. (2020), figure 1b.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        d_ff: int,
        *,
        norm: str = "layer",
        activation: str = "gelu",
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.norm_mha = norm_named(norm)(d_model)
        self.mha = MultiHeadAttention(d_model, n_heads, bias=bias)
        self.norm_ffn = norm_named(norm)(d_model)
        self.ffn = ffn_named(activation)(d_model, d_ff)

    @_checks.door
    def forward(
        self,
        X: Float[Tensor, "B n d_model"],
        mask: Bool[Tensor, "n n_k"] | None = None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "B n d_model"]:
        """Return X', of the shape of X."""
        H = X + self.mha(self.norm_mha(X), mask, cache)
        return H + self.ffn(self.norm_ffn(H))


class PostNormBlock(PreNormBlock):
    """Add first, then normalise the stream itself: the original Transformer's order.

    H = Norm(X + MHA(X)), X' = Norm(H + FFN(H)). The same parts as `PreNormBlock`, in another
    order; the identity path now runs through a norm at every step.

    Source: Vaswani et al. (2017), section 3.1.
    """

    @_checks.door
    def forward(
        self,
        X: Float[Tensor, "B n d_model"],
        mask: Bool[Tensor, "n n_k"] | None = None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "B n d_model"]:
        """Return X', of the shape of X."""
        H = self.norm_mha(X + self.mha(X, mask, cache))
        return self.norm_ffn(H + self.ffn(H))


BLOCKS: dict[str, type[PreNormBlock]] = {"pre": PreNormBlock, "post": PostNormBlock}
