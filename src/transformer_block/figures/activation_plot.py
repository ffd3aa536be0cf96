"""An activation, its derivative, and the straight line that comes closest to it."""

import torch

from transformer_block.feed_forward import activation_named
from transformer_block.figures.line_plot import lines
from transformer_block.figures.picture import Gallery, side_by_side

_NAMES = {"relu": "ReLU", "gelu": "GELU", "gelu_tanh": "GELU (tanh)", "silu": "SiLU"}


def activation(name: str, scale: float = 1.0) -> Gallery:
    """Draw σ and its derivative over inputs of this scale, with the best straight line.

    The line is the least-squares fit for inputs N(0, scale²). What it leaves of σ's variance is
    written above; the axis runs over ± 3 scales.

    Raises:
        ValueError: no such activation, or a scale of 0 or less.

    >>> activation("relu")
    ReLU; the line leaves 27 %: ReLU for inputs of scale 1, and the straight line nearest to it.
    its derivative: The derivative of ReLU runs from 0.00 to 1.00.
    """
    sigma = activation_named(name)
    if not scale > 0:
        raise ValueError(f"the scale of the inputs must be above 0, not {scale}")
    # 0 itself is left out, and approached from both sides: there ReLU has no derivative
    half = torch.cat([torch.tensor([1e-6]), torch.linspace(0.15, 3, 20)]).double() * scale
    x = torch.cat([-half.flip(0), half]).requires_grad_()
    y = sigma(x)
    slope = torch.autograd.grad(y.sum(), x)[0]
    a, b, left = _best_line(name, scale)
    said = _NAMES.get(name, name)
    curve = lines(
        {said: y, "best line": a * x + b},
        x,
        x_title="input",
        width=240,
        alt=f"{said} for inputs of scale {scale:g}, and the straight line nearest to it.",
    )
    derivative = lines(
        {"derivative": slope},
        x,
        x_title="input",
        width=240,
        alt=f"The derivative of {said} runs from {slope.min():.2f} to {slope.max():.2f}.",
    )
    captions = [f"{said}; the line leaves {left:.0%}".replace("%", " %"), "its derivative"]
    return side_by_side(curve, derivative, captions=captions)


def _best_line(name: str, scale: float) -> tuple[float, float, float]:
    """Return slope and height of the line, and the share of σ's variance it leaves."""
    x = torch.linspace(-6, 6, 4001, dtype=torch.float64)
    weight = torch.exp(-(x**2) / 2)
    weight, x = weight / weight.sum(), x * scale
    y = activation_named(name)(x)
    height = float((weight * y).sum())
    slope = float((weight * x * y).sum()) / scale**2
    variance = float((weight * (y - height) ** 2).sum())
    return slope, height, abs(1 - (slope * scale) ** 2 / variance)
