"""Measure what a learned W_O is worth on the toy language, against each head in its own band."""

from transformer_block.notebook.fixed_projection import excess_with
from transformer_block.toy_language import toy_language

SETTINGS = [
    {"W_O": "identity", "steps": 40},
    {"W_O": "learned", "steps": 400},
    {"W_O": "identity", "steps": 400},
]
SEEDS = [71, 72, 73]


def row(seed: int, W_O: str, steps: int) -> dict[str, float]:
    """Return the excess over the language's entropy, in nats per word."""
    return {"excess": excess_with(W_O, seed=seed, steps=steps, language=toy_language())}
