"""The sizes and choices of one model, checked once."""

from dataclasses import dataclass

from transformer_block import _checks
from transformer_block.block import BLOCKS
from transformer_block.feed_forward import ffn_named
from transformer_block.norm import norm_named


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Describe a `LanguageModel`: V words, at most n_ctx tokens, L blocks of h heads.

    Raises:
        ValueError: for sizes below 1, heads that do not divide d_model, or an unknown name.

    >>> ModelConfig(vocab_size=17, n_ctx=7, d_model=12, n_heads=3, n_layers=2, d_ff=20).d_head
    4
    """

    vocab_size: int
    n_ctx: int
    d_model: int
    n_heads: int
    n_layers: int
    d_ff: int
    norm: str = "layer"
    norm_place: str = "pre"
    activation: str = "gelu"
    tie_weights: bool = False
    bias: bool = False

    def __post_init__(self) -> None:
        """Check every field."""
        _checks.positive(
            vocab_size=self.vocab_size, n_ctx=self.n_ctx, n_layers=self.n_layers, d_ff=self.d_ff
        )
        _checks.divides(self.n_heads, self.d_model)
        norm_named(self.norm)
        ffn_named(self.activation)
        if self.norm_place not in BLOCKS:
            raise ValueError(f"norm_place must be pre or post, not {self.norm_place!r}")

    @property
    def d_head(self) -> int:
        """Features of one head: d_model / n_heads."""
        return self.d_model // self.n_heads
