"""What d_ff and d_model buy: random dichotomies one plane separates, and a two-key table stored."""

from transformer_block.notebook.capacity import separable_share, store, two_key_facts

SETTINGS = [
    {"d_model": d_model, "d_ff": d_ff, "activation": activation}
    for d_model in (16, 8, 32)
    for d_ff in (16, 4, 8, 24, 32)
    for activation in ("gelu", "identity")
]
SEEDS = [51, 52, 53]


def row(seed: int, d_model: int, d_ff: int, activation: str) -> dict[str, float]:
    """Return the share of 100 dichotomies of 30 points, and the share of 256 facts right."""
    table = two_key_facts(seed, d_model)
    right = table.right(store(seed, table, d_ff, activation))
    return {
        "separable": separable_share(seed, d_model, d_ff, activation),
        "facts": float(right.double().mean()),
    }
