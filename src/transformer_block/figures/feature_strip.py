"""The features of a token as bars up and down from 0: before a norm, and after it."""

from collections.abc import Mapping
from typing import Any

from transformer_block.figures.picture import (
    SERIES,
    Number,
    Picture,
    dot,
    drawing,
    finite,
    numbers,
    text,
)

_HALF = 54  # from 0 to the end of the longest bar


def features(
    tokens: Mapping[str, Any],
    *,
    alt: str,
    span: Number | None = None,
    form: str = ".1f",
    width: Number = 400,
) -> Picture:
    """Draw one strip of bars a token, all strips to one scale.

    Args:
        tokens: what stands above a strip → the token's features; lists, tensors or arrays.
        alt: what the picture shows, in a sentence.
        span: the size of a feature that fills a strip upwards or downwards; the largest if not
            given. Longer bars are cut there.
        form: how values are written, as after the colon of an f-string.
        width: how wide the drawing becomes.

    Raises:
        ValueError: no token, no feature, a value that is not finite.
    """
    strips = {name: numbers(values) for name, values in tokens.items()}
    if not strips or not all(strips.values()):
        raise ValueError("features needs one token or more, each with a feature or more")
    for name, values in strips.items():
        finite(values, f"features, at {name!r},")
    full = span or max(abs(v) for values in strips.values() for v in values) or 1.0

    parts, y = [], 0.0
    for place, (name, values) in enumerate(strips.items()):
        parts.append(text(0, y + 13, name, more=' font-weight="600"'))
        # with a span the room is always the same, so that a slider moves bars and nothing else
        up, down = (full, full) if span else (max(values), -min(values))
        zero = y + 34 + max(0, up) / full * _HALF
        y = zero + 16 + max(0, down) / full * _HALF
        step = width / len(values)
        bars, said = "", []
        for i, value in enumerate(values):
            long = max(-_HALF, min(value / full * _HALF, _HALF))
            bars += (
                f"M{dot((i + 0.2) * step)} {dot(zero)}v{dot(-long)}h{dot(0.6 * step)}V{dot(zero)}z"
            )
            at = zero - long + (-4 if value >= 0 else 13)
            said.append(text((i + 0.5) * step, at, format(value, form)))
        parts.append(f'<path d="{bars}" style="fill:{SERIES[place % len(SERIES)]}"/>')
        parts.append(f'<path d="M0 {dot(zero)}H{dot(width)}" stroke="currentColor"/>')
        parts.append(f'<g text-anchor="middle">{"".join(said)}</g>')
        y += 8
    return Picture(drawing(width, y, parts), alt)
