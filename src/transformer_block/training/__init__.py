"""Train a model: the loop, trainings by description, and the weights kept of them."""

from transformer_block.training.jobs import Job, plain_torch, toy_config
from transformer_block.training.loop import (
    STANDARD_RECIPE,
    Recipe,
    Source,
    TrainingRun,
    next_token_loss,
    one_thread,
    train,
)
from transformer_block.training.store import run_job, train_many, trained

__all__ = [
    "STANDARD_RECIPE",
    "Job",
    "Recipe",
    "Source",
    "TrainingRun",
    "next_token_loss",
    "one_thread",
    "plain_torch",
    "run_job",
    "toy_config",
    "train",
    "train_many",
    "trained",
]
