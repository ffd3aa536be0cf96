"""Measure how far a token's company moves a model with LayerNorm, and one with BatchNorm."""

from transformer_block.notebook.batch_norm import disturbances, loss_by_mode, train_with

SETTINGS = [
    {"norm": norm, "batch_size": batch_size}
    for batch_size in (8, 2, 48)
    for norm in ("layer", "batch")
]
SEEDS = [41, 42, 43]


def row(seed: int, norm: str, batch_size: int) -> dict[str, float | list[float]]:
    """Return the loss in both modes, and in both modes the changes that `disturbances` finds."""
    model = train_with(norm, seed=seed, batch_size=batch_size)
    training, evaluation = loss_by_mode(model, seed=seed, batch_size=batch_size)
    return {
        "loss_in_training_mode": training,
        "loss_in_evaluation_mode": evaluation,
        "moved_in_training_mode": list(disturbances(model.train(), seed=seed).values()),
        "moved_in_evaluation_mode": list(disturbances(model.eval(), seed=seed).values()),
    }
