"""An attention map as lines from each word that reads to the words that it reads."""

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

_ROW, _TOP, _STEPS, _LEAST = 23, 30, 10, 0.05


def reading(
    weights: Any, words: Sequence[str], *, lit: int | None = None, width: Number = 320
) -> Picture:
    """Draw the words twice, readers on the left, and a line for each weight of 0.05 or more.

    The larger the weight, the thicker and stronger the line.

    Args:
        weights: a row for each word that reads, a column for each word that is read; rows sum to
            1. A list, a tensor or an array.
        words: the words of the sentence, in any script.
        lit: the place of a reader to bring out, with its weights written beside the words it
            reads; all readers alike if not given.
        width: how wide the drawing becomes.

    Raises:
        ValueError: no square matrix of weights between 0 and 1, one row a word, or a `lit` that is
            not the place of a word.

    >>> reading([[1.0, 0.0], [0.25, 0.75]], ["two", "words"], lit=1)
    words reads words .75, two .25.
    """
    rows, n = numbers(weights), len(words)
    if not n or len(rows) != n or any(not isinstance(r, list) or len(r) != n for r in rows):
        raise ValueError(f"reading needs a row and a column for each of the {n} words")
    flat = [value for row in rows for value in row]
    finite(flat, "reading")
    if min(flat) < 0 or max(flat) > 1 + 1e-5:
        raise ValueError(f"weights lie in 0 … 1; these run from {min(flat)} to {max(flat)}")
    if lit is not None and not 0 <= lit < n:
        raise ValueError(f"lit must be the place of a word, 0 … {n - 1}, not {lit}")

    side = max(map(text_width, words)) + 8
    left, right = max(side, 44), width - max(side, 56) - 34
    others = [i for i in range(n) if i != lit]
    parts = _lines(rows, others, left, right, SERIES[0], 1.0 if lit is None else 0.3)
    if lit is not None:
        parts += _lines(rows, [lit], left, right, SERIES[1], 1.0)
    head, bold = ' font-weight="600"', [' font-weight="600"' if i == lit else "" for i in range(n)]
    reads = [text(left - 8, 13, "reads", more=head)]
    reads += [text(left - 8, _y(i) + 4.5, word, more=bold[i]) for i, word in enumerate(words)]
    is_read = [text(right + 8, 13, "is read", more=head)]
    is_read += [text(right + 8, _y(i) + 4.5, word) for i, word in enumerate(words)]
    weighed = [
        text(width - 2, _y(i) + 4.5, _short(value))
        for i, value in enumerate(rows[lit] if lit is not None else [])
        if value >= _LEAST
    ]
    parts += [f'<g text-anchor="end">{"".join(reads + weighed)}</g>', *is_read]
    return Picture(drawing(width, _TOP + _ROW * n, parts), _said(rows, words, lit))


def _y(row: int) -> float:
    return _TOP + _ROW * (row + 0.5)


def _lines(
    rows: list[list[float]],
    readers: list[int],
    left: Number,
    right: Number,
    colour: str,
    strength: float,
) -> list[str]:
    # one path for all lines of one thickness: small, so that many fit into a widget
    paths: dict[int, list[str]] = {}
    for i in readers:
        for j, value in enumerate(rows[i]):
            if value >= _LEAST:
                line = f"M{dot(left)} {dot(_y(i))}L{dot(right)} {dot(_y(j))}"
                paths.setdefault(max(round(value * _STEPS), 1), []).append(line)
    drawn = [
        f'<path d="{"".join(path)}" stroke-width="{dot(0.5 + 0.5 * step)}" '
        f'stroke-opacity="{dot(100 * strength * step / _STEPS)}%"/>'
        for step, path in sorted(paths.items())
    ]
    return [f'<g fill="none" style="stroke:{colour}">{"".join(drawn)}</g>'] if drawn else []


def _short(value: float) -> str:
    return f"{value:.2f}".removeprefix("0")


def _said(rows: list[list[float]], words: Sequence[str], lit: int | None) -> str:
    if lit is not None:
        order = sorted(range(len(words)), key=lambda j: -rows[lit][j])
        read = [f"{words[j]} {_short(rows[lit][j])}" for j in order if rows[lit][j] >= _LEAST]
        return f"{words[lit]} reads {', '.join(read[:3])}."
    strongest = [words[max(range(len(words)), key=lambda j: row[j])] for row in rows]
    pairs = ", ".join(f"{a} reads {b}" for a, b in zip(words, strongest, strict=True))
    return f"What each word reads most: {pairs}."
