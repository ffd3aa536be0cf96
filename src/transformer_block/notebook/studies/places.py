"""Measure the block and dense boxes at family × place pairs that were trained, and held out."""

from transformer_block.notebook.places import (
    DenseBox,
    ElsewhereLanguage,
    train_elsewhere,
)
from transformer_block.toy_language import toy_language

SETTINGS = [
    {"kind": kind}
    for kind in (
        "dense box",
        "block",
        "block with positions",
        "dense box, narrow stream",
        "dense box, large",
    )
]
SEEDS = [61, 62, 63]


def row(seed: int, kind: str) -> dict[str, float]:
    """Return the excess in nats per token, averaged over the pairs, and the weights in use."""
    source = ElsewhereLanguage(toy_language())
    model = train_elsewhere(kind, seed=seed)
    excess, mixer = source.excess(model), model.blocks[0]
    return {
        "trained": float(excess[source.said].mean()),
        "held_out": float(excess[~source.said].mean()),
        "weights": mixer.n_weights
        if isinstance(mixer, DenseBox)
        else sum(p.numel() for p in mixer.parameters()),
    }
