"""Measure the first 50 steps without warm-up: where the norm stands, how deep, how drawn."""

from transformer_block.notebook.norm_place import first_steps

SETTINGS = [
    {"kind": "pre", "n_layers": 6, "std": None},
    {"kind": "post", "n_layers": 6, "std": None},
    {"kind": "pre", "n_layers": 36, "std": None},
    {"kind": "post", "n_layers": 36, "std": None},
    {"kind": "adds norm", "n_layers": 36, "std": None},
    {"kind": "pre", "n_layers": 36, "std": 0.02},
    {"kind": "post", "n_layers": 36, "std": 0.02},
]
SEEDS = [61, 62, 63]


def row(seed: int, kind: str, n_layers: int, std: float | None) -> dict[str, float | list[float]]:
    """Return the loss of each step, the mean of the last five, and the last gradient by block."""
    losses, gradients = first_steps(kind, n_layers, seed=seed, std=std)
    return {"loss": sum(losses[-5:]) / 5, "losses": losses, "gradients": gradients}
