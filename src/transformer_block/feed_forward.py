"""Compute on each token alone: up to d_ff, a non-linearity, down again."""

from collections.abc import Callable
from functools import partial
from typing import ClassVar

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from transformer_block import _checks


def _identity(x: Tensor) -> Tensor:
    return x


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,  # exact: x Φ(x)
    "gelu_tanh": partial(F.gelu, approximate="tanh"),  # GPT-2's approximation of it
    "silu": F.silu,
    "identity": _identity,  # no non-linearity: shows what is lost
}


def activation_named(name: str) -> Callable[[Tensor], Tensor]:
    """Return the activation function of that name.

    Raises:
        ValueError: naming those that exist.
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, not {name!r}")
    return ACTIVATIONS[name]


class FeedForward(nn.Module):
    """Apply the same two-layer perceptron at every position: FFN(x) = σ(x W₁ + b₁) W₂ + b₂.

    No token reads another here. `activation` names σ (see `ACTIVATIONS`).

    Raises:
        ValueError: for sizes below 1, an unknown activation, or an X that is not a finite
            `[..., d_model]`.

    Source: Vaswani et al. (2017), equation 2, with σ = ReLU.
    """

    # the matrices up to d_ff, by the name their product has in `record`
    ups: ClassVar = {"pre": "W_1"}

    def __init__(self, d_model: int, d_ff: int, activation: str = "gelu") -> None:
        super().__init__()
        _checks.positive(d_model=d_model, d_ff=d_ff)
        self.d_model = d_model
        self.activation = activation_named(activation)
        self.W_1 = nn.Linear(d_model, d_ff)
        self.W_2 = nn.Linear(d_ff, d_model)

    def forward(self, X: Float[Tensor, "*tokens d_model"]) -> Float[Tensor, "*tokens d_model"]:
        """Return what is to be added to each token."""
        _checks.stream(X, self.d_model)
        return self.W_2(self.activation(self.W_1(X)))


class SwiGLU(nn.Module):
    """Gate the features before coming down: FFN(x) = (SiLU(x W_gate) ⊙ x W₁) W₂, without biases.

    Raises:
        ValueError: for sizes below 1, or an X that is not a finite `[..., d_model]`.

    Source: Shazeer (2020), equation 6, where W_gate, W₁ and W₂ are called W, V and W₂.
    """

    ups: ClassVar = {"pre": "W_gate", "up": "W_1"}

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        _checks.positive(d_model=d_model, d_ff=d_ff)
        self.d_model = d_model
        self.W_gate = nn.Linear(d_model, d_ff, bias=False)
        self.W_1 = nn.Linear(d_model, d_ff, bias=False)
        self.W_2 = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, X: Float[Tensor, "*tokens d_model"]) -> Float[Tensor, "*tokens d_model"]:
        """Return what is to be added to each token."""
        _checks.stream(X, self.d_model)
        return self.W_2(F.silu(self.W_gate(X)) * self.W_1(X))


FFNS: dict[str, Callable[[int, int], FeedForward | SwiGLU]] = {
    **{name: partial(FeedForward, activation=name) for name in ACTIVATIONS},
    "swiglu": SwiGLU,
}


def ffn_named(name: str) -> Callable[[int, int], FeedForward | SwiGLU]:
    """Return what builds the FFN of that name from d_model and d_ff: a σ of its own, or "swiglu".

    Raises:
        ValueError: naming those that exist.
    """
    if name not in FFNS:
        raise ValueError(f"activation must be one of {', '.join(FFNS)}, not {name!r}")
    return FFNS[name]
