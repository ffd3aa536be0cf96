"""Bars that lie beside their labels, as for the likeliest next words."""

from collections.abc import Sequence
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
    text_width,
)

_ROW = 26


def bars(
    labels: Sequence[str],
    values: Any,
    *,
    alt: str,
    lit: str | Sequence[str] = (),
    form: str = ".2f",
    top: Number | None = None,
    title: str = "",
    width: Number = 400,
) -> Picture:
    """Draw one bar a label, in the order given.

    Args:
        labels: the words beside the bars, in any script.
        values: numbers, none below zero; a list, a tensor or an array.
        alt: what the picture shows, in a sentence.
        lit: the label (or labels) to bring out; the others are drawn paler.
        form: how values are written, as after the colon of an f-string: ".0%".
        top: the value that fills the width; the largest if not given.
        title: a line above.
        width: how wide the drawing becomes.

    Raises:
        ValueError: lengths differ, a value is negative or not finite, `lit` is not a label.
    """
    lengths = numbers(values)
    if not labels or len(labels) != len(lengths):
        raise ValueError(f"bars needs one value a label; {len(labels)} and {len(lengths)}")
    finite(lengths, "bars")
    if min(lengths) < 0:
        raise ValueError(f"bars needs values of zero or more; the least is {min(lengths)}")
    chosen = [lit] if isinstance(lit, str) else list(lit)
    if missing := [label for label in chosen if label not in labels]:
        raise ValueError(f"{missing[0]!r} is not one of the labels {list(labels)}")

    full = top or max(lengths) or 1.0
    left = min(max(map(text_width, labels)) + 10, width / 2)
    right = 1.1 * max(text_width(format(value, form)) for value in lengths) + 8  # may be bold
    parts = [text(0, 14, title, more=' font-weight="600"')] if title else []
    y = 24.0 if title else 2.0
    for label, value in zip(labels, lengths, strict=True):
        pale = "" if not chosen or label in chosen else ";fill-opacity:.4"
        bold = ' font-weight="600"' if label in chosen else ""
        long = max((width - left - right) * min(value / full, 1), 1)
        bar = f"M{dot(left)} {dot(y + 3)}h{dot(long)}v{_ROW - 6}h-{dot(long)}z"
        parts += [
            text(left - 8, y + 17, label, "end", bold),
            f'<path d="{bar}" style="fill:{SERIES[0]}{pale}"/>',
            text(left + long + 6, y + 17, format(value, form), more=bold),
        ]
        y += _ROW
    return Picture(drawing(width, y + 2, parts), alt)
