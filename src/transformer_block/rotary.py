"""Turn queries and keys by their position, so that a score knows how far apart the two stand."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from transformer_block import _checks


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Let a model that was trained on `n_trained` tokens read about `factor` times as many.

    A pair that makes at least `high` turns within n_trained tokens keeps its θ, one that makes at
    most `low` turns `factor` times as slowly, and those between are mixed: near neighbours are
    told apart as before, and far ones stand at angles that training has seen.

    Raises:
        ValueError: for a factor below 1, an n_trained below 1, or low turns that are not fewer
            than the high ones.
    """

    factor: float
    low: float
    high: float
    n_trained: int

    def __post_init__(self) -> None:
        """Check every field."""
        _checks.positive(n_trained=self.n_trained)
        if not 1 <= self.factor < math.inf:
            raise ValueError(f"factor must be a finite number of at least 1, not {self.factor!r}")
        if not 0 <= self.low < self.high < math.inf:
            raise ValueError(
                f"low turns must be fewer than high turns, but low is {self.low!r} and high "
                f"{self.high!r}"
            )


def stretched(frequencies: Float[Tensor, "half"], how: Stretch) -> Float[Tensor, "half"]:
    """Return the frequencies (radians a position) with the slow ones made slower.

    Source: the code published with Llama 3.1, where low and high are called low_freq_factor and
    high_freq_factor.
    """
    turns = how.n_trained / (2 * math.pi / frequencies)
    kept = ((turns - how.low) / (how.high - how.low)).clamp(0, 1)
    return (1 - kept) * frequencies / how.factor + kept * frequencies


class Rotary:
    """Turn each pair of features (x_i, x_{i + d/2}) at position m by the angle m θ_i.

    θ_i = theta^(−2i / d_head) for i = 0 … d_head/2 − 1: the first pairs turn fast, the last slowly.
    A turn changes no length, and the dot product of two turned vectors depends on the difference
    of their positions only. Nothing is learned. The angles are computed in float32, as those of
    the published models are, and their cosines and sines are kept from call to call. `stretch`
    slows the slow pairs for texts longer than those of the training.

    Raises:
        ValueError: for an odd d_head, or a theta that is not a finite number above 1.

    Source: Su et al. (2021), section 3.2.2; there neighbours are paired (x_{2i}, x_{2i+1}), in
    the published Llama models the two halves, which is the same but for the order of the features.
    """

    def __init__(
        self, d_head: int, theta: int | float = 10_000.0, stretch: Stretch | None = None
    ) -> None:
        _checks.positive(d_head=d_head)
        if d_head % 2:
            raise ValueError(
                f"rotary positions turn pairs of features, so d_head must be even, not {d_head}"
            )
        if not 1 < theta < math.inf:
            raise ValueError(f"theta must be a finite number above 1, not {theta!r}")
        self.d_head, self.theta, self.stretch = d_head, theta, stretch
        even = torch.arange(0, d_head, 2, dtype=torch.float32, device="cpu")
        self.frequencies = 1 / theta ** (even / d_head)  # θ_i, in radians a position
        if stretch is not None:
            self.frequencies = stretched(self.frequencies, stretch)
        self._kept = (torch.empty(0, d_head, device="cpu"),) * 2

    def __call__(
        self, X: Float[Tensor, "*heads n d_head"], n_past: int = 0
    ) -> Float[Tensor, "*heads n d_head"]:
        """Turn n vectors that stand at the positions n_past … n_past + n − 1."""
        n = X.shape[-2]
        cos, sin = (table[n_past : n_past + n] for table in self._tables(n_past + n, X))
        left, right = X.chunk(2, dim=-1)
        return X * cos + torch.cat([-right, left], dim=-1) * sin

    def by_hand(
        self, X: Float[Tensor, "*heads n d_head"], n_past: int = 0
    ) -> Float[Tensor, "*heads n d_head"]:
        """Do the same in complex numbers: (x_i + x_{i + d/2} j) · e^(j m θ_i)."""
        left, right = X.chunk(2, dim=-1)
        turned = torch.complex(left, right) * torch.exp(1j * self._angles(n_past, X.shape[-2]))
        return torch.cat([turned.real, turned.imag], dim=-1).to(X.dtype)

    def _angles(self, first: int, n: int) -> Float[Tensor, "n half"]:
        positions = torch.arange(first, first + n, dtype=torch.float32, device="cpu")
        return positions[:, None] * self.frequencies

    def _tables(self, n: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cosines and sines of the first n positions (at least), made once."""
        cos, sin = self._kept
        if len(cos) < n or cos.dtype != like.dtype or cos.device != like.device:
            angles = self._angles(0, max(n, 2 * len(cos))).repeat(1, 2)
            cos, sin = angles.cos().to(like), angles.sin().to(like)
            self._kept = cos, sin
        return cos, sin
