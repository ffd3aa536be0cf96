"""Train stacks that add a sublayer's output, or concat it and project."""

import math

import torch

from transformer_block.notebook.depth import deep_model
from transformer_block.notebook.joins import projected
from transformer_block.toy_language import toy_language
from transformer_block.train import Recipe, train

SETTINGS = [
    {"way": way, "n_layers": n_layers}
    for n_layers in (8, 24)
    for way in ("add", "concat and project", "the same, begun as a sum")
]
SEEDS = [31, 32, 33]


def row(seed: int, way: str, n_layers: int) -> dict[str, float]:
    """Return the loss, in nats per token, over the last ten of sixty steps at a constant rate."""
    model = deep_model("pre-norm", n_layers, seed=seed)
    if way != "add":
        projected(model, as_sum=way == "the same, begun as a sum")
    recipe = Recipe(steps=60, batch_size=32, lr=3e-3, warm_up=0.0, lr_last=1.0, clip=math.inf)
    run = train(model, toy_language(), seed=seed, recipe=recipe)
    return {"loss": float(torch.mean(run.losses[-10:]))}
