"""Set the scale of one token's features, whatever the other tokens hold."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer_block import _checks


class LayerNorm(nn.Module):
    """Shift and scale each token to mean 0 and variance 1, then apply γ and β.

    y = γ (x − μ) / √(σ² + ε) + β, with μ and σ² over the d_model features of one token. The
    variance is the biased one (divided by d_model, not d_model − 1), and ε stands inside the root.

    Raises:
        ValueError: for an X that is not a finite `[..., d_model]`.

    Source: Ba, Kiros and Hinton (2016), section 3, where γ and β are called gain g and bias b.
    """

    def __init__(self, d_model: int, eps: float = 1e-5) -> None:
        super().__init__()
        _checks.positive(d_model=d_model)
        self.d_model, self.eps = d_model, eps
        self.gamma = nn.Parameter(torch.ones(d_model))
        self.beta = nn.Parameter(torch.zeros(d_model))

    def forward(self, X: Float[Tensor, "*tokens d_model"]) -> Float[Tensor, "*tokens d_model"]:
        """Normalise each token over its own features."""
        _checks.stream(X, self.d_model)
        return nn.functional.layer_norm(X, (self.d_model,), self.gamma, self.beta, self.eps)

    def by_hand(self, X: Float[Tensor, "*tokens d_model"]) -> Float[Tensor, "*tokens d_model"]:
        """Do the same in the letters of the formula; `forward` is the fused form of it."""
        x = _wide(X)
        mu = x.mean(dim=-1, keepdim=True)
        var = x.var(dim=-1, unbiased=False, keepdim=True)
        return (self.gamma * (x - mu) / torch.sqrt(var + self.eps) + self.beta).to(X.dtype)


class RMSNorm(nn.Module):
    """Scale each token to mean square 1, then apply γ; the mean stays.

    y = γ x / √(mean(x²) + ε), over the d_model features of one token.

    Raises:
        ValueError: for an X that is not a finite `[..., d_model]`.

    Source: Zhang and Sennrich (2019), equation 4, where γ is called g.
    """

    def __init__(self, d_model: int, eps: float = 1e-5) -> None:
        super().__init__()
        _checks.positive(d_model=d_model)
        self.d_model, self.eps = d_model, eps
        self.gamma = nn.Parameter(torch.ones(d_model))

    def forward(self, X: Float[Tensor, "*tokens d_model"]) -> Float[Tensor, "*tokens d_model"]:
        """Normalise each token over its own features."""
        _checks.stream(X, self.d_model)
        return nn.functional.rms_norm(X, (self.d_model,), self.gamma, self.eps)

    def by_hand(self, X: Float[Tensor, "*tokens d_model"]) -> Float[Tensor, "*tokens d_model"]:
        """Do the same in the letters of the formula; `forward` is the fused form of it."""
        x = _wide(X)
        mean_square = x.square().mean(dim=-1, keepdim=True)
        return (self.gamma * x / torch.sqrt(mean_square + self.eps)).to(X.dtype)


NORMS: dict[str, type[LayerNorm] | type[RMSNorm]] = {"layer": LayerNorm, "rms": RMSNorm}


def norm_named(name: str) -> type[LayerNorm] | type[RMSNorm]:
    """Return the norm of that name, to be built from d_model.

    Raises:
        ValueError: naming those that exist.
    """
    if name not in NORMS:
        raise ValueError(f"norm must be one of {', '.join(NORMS)}, not {name!r}")
    return NORMS[name]


def _wide(X: Tensor) -> Tensor:
    """Return X in float32 at least, as the fused kernels compute: float16 ends at 65504."""
    return X.to(torch.promote_types(X.dtype, torch.float32))
