"""Measure the gradient in each block of stacks of several depths, with and without residual."""

from transformer_block.notebook.depth import deep_model, gradients_by_block

SETTINGS = [
    {"kind": kind, "n_layers": n_layers}
    for n_layers in (2, 4, 8, 12, 16, 24)
    for kind in ("pre-norm", "no residual")
]
SEEDS = [31, 32, 33]


def row(seed: int, kind: str, n_layers: int) -> dict[str, list[float]]:
    """Return its length in each block, first to last, at steps 0, 5 and 50 of training."""
    found = gradients_by_block(deep_model(kind, n_layers, seed=seed), seed=seed)
    return {f"step_{step}": lengths for step, lengths in found.items()}
