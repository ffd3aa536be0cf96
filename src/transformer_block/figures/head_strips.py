"""How h heads split the width d_model, and what that costs."""

import torch

from transformer_block.figures.picture import SERIES, Picture, dot, drawing, text
from transformer_block.multi_head import MultiHeadAttention

_WIDTH = 400.0


def heads(d_model: int, n_heads: int) -> Picture:
    """Draw d_model features cut into h strips, with sizes and weights counted in the layer.

    Raises:
        ValueError: the heads do not divide d_model.

    >>> heads(d_model=96, n_heads=4)
    96 features cut into 4 heads of 24; W_Q, W_K, W_V and W_O have 36,864 weights together.
    """
    with torch.device("meta"):  # counted, not made
        mha = MultiHeadAttention(d_model, n_heads)
    weights = sum(parameter.numel() for parameter in mha.parameters())
    strip = _WIDTH / n_heads
    parts = [
        f'<path d="M{dot(i * strip + 1)} 22h{dot(strip - 2)}v34H{dot(i * strip + 1)}z" '
        f'style="fill:{SERIES[i % len(SERIES)]};fill-opacity:.55"/>'
        for i in range(n_heads)
    ]
    if strip > 22:
        parts += [text((i + 0.5) * strip, 44, i + 1, "middle") for i in range(n_heads)]
    facts = {
        "features of one head, d_head": mha.d_head,
        "width of the concat, h · d_head": mha.W_O.in_features,
        "weights of W_Q, W_K, W_V, W_O": weights,
        "attention maps of n × n": n_heads,
    }
    parts.append(text(0, 14, f"d_model = {d_model} features of one token, cut for {n_heads} heads"))
    for row, (fact, number) in enumerate(facts.items()):
        y = 80 + 20 * row
        parts += [text(0, y, fact), text(_WIDTH, y, f"{number:,}", "end", ' font-weight="600"')]
    return Picture(
        drawing(_WIDTH, 150, parts),
        f"{d_model} features cut into {n_heads} heads of {mha.d_head}; "
        f"W_Q, W_K, W_V and W_O have {weights:,} weights together.",
    )
