"""Fit one curve with a residual net of six parts, trained together or one by one."""

import torch

from transformer_block.notebook.parts import ResidualNet, curve, fit_one_by_one, fit_together

SETTINGS = [{"way": "one by one"}, {"way": "together"}]
SEEDS = [31, 32, 33, 34, 35, 36]


def row(seed: int, way: str) -> dict[str, list[float]]:
    """Return the mean squared error (the variance is 1) read off behind 1, 2, … 6 parts."""
    torch.manual_seed(seed)
    net, (x, y) = ResidualNet(6), curve(seed)
    (fit_together if way == "together" else fit_one_by_one)(net, x, y)
    return {"errors": net.errors(x, y)}
