"""The same model with what published models changed: another attention, other norms and FFNs."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from transformer_block import _checks
from transformer_block.attention import causal_mask
from transformer_block.block import BLOCKS, PreNormBlock
from transformer_block.config import ModelConfig
from transformer_block.feed_forward import ffn_named
from transformer_block.grouped_query import GroupedQueryAttention
from transformer_block.language_model import LanguageModel
from transformer_block.multi_head import KeyValueCache
from transformer_block.norm import norm_named
from transformer_block.rotary import Rotary, Stretch


@dataclass(frozen=True, kw_only=True)
class ModernConfig(ModelConfig):
    """Describe a `ModernModel`: the fields of `ModelConfig`, and what it does not let one choose.

    `n_kv_heads` is h_kv (0: as many as heads) and `d_head` the width of a head (0: d_model / h;
    else h · d_head need not be d_model). `positions` is "learned" (P) or "rotary", whose base is
    `theta` and which `stretch` slows for long texts; `eps` is the ε of every norm.

    Raises:
        ValueError: as `ModelConfig`; for heads that do not fit into groups, an odd d_head with
            rotary positions, an eps that is not a small number above 0.

    >>> sizes = {"vocab_size": 17, "n_ctx": 7, "d_model": 12, "n_layers": 2, "d_ff": 20}
    >>> config = ModernConfig(**sizes, n_heads=6, n_kv_heads=2, positions="rotary")
    >>> config.d_head, config.n_kv_heads
    (2, 2)
    """

    n_kv_heads: int = 0
    d_head: int = 0
    positions: str = "learned"
    theta: float = 10_000.0
    stretch: Stretch | None = None
    eps: float = 1e-5

    def __post_init__(self) -> None:
        """Check every field and fill in the two that follow from others."""
        _checks.positive(
            vocab_size=self.vocab_size,
            n_ctx=self.n_ctx,
            d_model=self.d_model,
            n_heads=self.n_heads,
            n_layers=self.n_layers,
            d_ff=self.d_ff,
        )
        if self.d_head == 0:
            object.__setattr__(self, "d_head", _checks.divides(self.n_heads, self.d_model))
        if self.n_kv_heads == 0:
            object.__setattr__(self, "n_kv_heads", self.n_heads)
        norm_named(self.norm)
        ffn_named(self.activation)
        if self.norm_place not in BLOCKS:
            raise ValueError(f"norm_place must be pre or post, not {self.norm_place!r}")
        if self.positions not in ("learned", "rotary"):
            raise ValueError(f"positions must be learned or rotary, not {self.positions!r}")
        if self.positions == "learned" and self.stretch is not None:
            raise ValueError("stretch slows rotary positions; learned ones cannot be stretched")
        if not 0 < self.eps < 1:
            raise ValueError(f"eps must be a small number above 0, not {self.eps!r}")
        with torch.device("meta"):  # checks the rest, and allocates nothing
            _attention(self, _rotary(self))


def _rotary(config: ModernConfig) -> Rotary | None:
    if config.positions == "learned":
        return None
    return Rotary(config.d_head, config.theta, config.stretch)


def _attention(config: ModernConfig, rotary: Rotary | None) -> GroupedQueryAttention:
    sizes = config.d_model, config.n_heads, config.n_kv_heads, config.d_head
    return GroupedQueryAttention(*sizes, bias=config.bias, rotary=rotary)


def modern_block(config: ModernConfig, rotary: Rotary | None = None) -> PreNormBlock:
    """Build a block of the same two equations, with the attention and the ε that a config asks for.

    `rotary` is the one that all blocks share (its tables are made once); one of its own if None.
    """
    sizes = config.d_model, 1, config.d_ff  # one head fits any width; the attention is exchanged
    block = BLOCKS[config.norm_place](*sizes, norm=config.norm, activation=config.activation)
    block.mha = _attention(config, rotary or _rotary(config))
    block.norm_mha.eps = block.norm_ffn.eps = config.eps
    return block


class ModernModel(LanguageModel):
    """Predict the next token as `LanguageModel` does, with the choices of a `ModernConfig`.

    With rotary positions there is no P: X^(0) = E[ids], and each attention turns its queries and
    keys. With learned positions, h_kv = h and ε = 1e-5 this is `LanguageModel`, number by number.

    Raises:
        ValueError: as `LanguageModel`.

    Source: Touvron et al. (2023), section 2.2, for RMSNorm, SwiGLU and rotary positions together.
    """

    config: ModernConfig

    def __init__(self, config: ModernConfig) -> None:
        rotary = _rotary(config)
        # P is drawn with one row where it is thrown away: n_ctx rows may be gigabytes.
        drawn = replace(config, n_ctx=1) if rotary else config
        super().__init__(drawn, block=lambda _: modern_block(config, rotary))
        self.config = config
        if isinstance(self.norm_final, nn.Module) and hasattr(self.norm_final, "eps"):
            self.norm_final.eps = config.eps
        if rotary:
            del self.P

    @_checks.door
    def forward(
        self, ids: Integer[Tensor, "B n"], caches: list[KeyValueCache] | None = None
    ) -> Float[Tensor, "B n vocab_size"]:
        """Return the logits of the token after each position, as `LanguageModel` does."""
        if self.config.positions == "learned":
            return super().forward(ids, caches)
        n_past = len(caches[0]) if caches else 0
        ids = _checks.ids(ids, self.config.vocab_size)
        n, n_ctx = ids.shape[1], self.config.n_ctx
        if n_past + n > n_ctx:
            raise ValueError(
                f"the model reads at most n_ctx = {n_ctx} tokens, not {n_past + n}; "
                "shorten the text or build the model with a larger n_ctx"
            )
        X = self.E(ids)
        mask = causal_mask(n, n_past, ids.device)
        for i, block in enumerate(self.blocks):
            X = block(X, mask, caches[i] if caches else None)
        return self.W_LM(self.norm_final(X))
