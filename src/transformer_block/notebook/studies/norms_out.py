"""Measure the first 60 steps of deep models that lack some of their norms."""

from transformer_block.notebook.norms_out import first_losses

SETTINGS = [
    {"n_layers": 8, "weights": 1.0, "removed": None},
    {"n_layers": 8, "weights": 1.0, "removed": "norms in blocks"},
    *(
        {"n_layers": 24, "weights": weights, "removed": removed}
        for weights in (1.0, 0.3)
        for removed in (None, "norms in blocks", "final norm", "all norms")
    ),
]
SEEDS = [41, 42, 43]


def row(seed: int, n_layers: int, weights: float, removed: str | None) -> dict[str, float]:
    """Return the mean loss of the last ten steps that ran, in nats per token, and their number."""
    losses = first_losses(removed, n_layers, seed=seed, weights=weights)
    return {"loss": sum(losses[-10:]) / len(losses[-10:]), "steps": len(losses)}
