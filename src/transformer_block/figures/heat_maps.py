"""A matrix as coloured cells: attention maps, and which output depends on which input."""

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

_WIDTH, _STEPS, _DARKEST = 400.0, 20, 0.75  # beyond .75, a cell's number could not be read


def heat_map(
    matrix: Any,
    rows: Sequence[object] = (),
    columns: Sequence[object] = (),
    *,
    alt: str,
    row_title: str = "",
    column_title: str = "",
    values: bool | None = None,
    form: str = ".2f",
    top: Number | None = None,
    width: Number = _WIDTH,
) -> Picture:
    """Draw a matrix; the larger a value, the stronger its colour, and negative ones in another.

    Args:
        matrix: rows of numbers; lists, a tensor or an array.
        rows: a label for each row, or none at all.
        columns: a label for each column, or none at all.
        alt: what the picture shows, in a sentence.
        row_title: what the rows are ("query").
        column_title: what the columns are ("key").
        values: whether numbers stand in the cells; by default where they fit.
        form: how they are written, as after the colon of an f-string.
        top: the size that has the strongest colour; the largest if not given (1 for weights).
        width: how wide the drawing may become.

    Raises:
        ValueError: no rectangle of finite numbers, or labels that do not fit it.
    """
    cells = numbers(matrix)
    tall, wide = len(cells), len(cells[0]) if cells and isinstance(cells[0], list) else 0
    ragged = any(not isinstance(row, list) or len(row) != wide for row in cells)
    if not wide or ragged or any(isinstance(cell, list) for row in cells for cell in row):
        raise ValueError("heat_map needs a matrix: rows of numbers, all of one length")
    for name, labels, many in (("rows", rows, tall), ("columns", columns, wide)):
        if labels and len(labels) != many:
            raise ValueError(f"heat_map has {many} {name}, but {len(labels)} labels for them")
    flat = [value for row in cells for value in row]
    finite(flat, "heat_map")
    full = top or max(map(abs, flat)) or 1.0

    names, heads = [str(r) for r in rows], [str(c) for c in columns]
    left = max([text_width(name) + 8 for name in names], default=2) + (20 if row_title else 0)
    size = min((width - left) / wide, 40)
    turned = any(text_width(head) > size - 4 for head in heads)
    longest = max(map(text_width, heads), default=0)
    over = longest * 0.75 - size / 2 if turned else 0  # slanted labels lean out to the right
    if turned:
        size = min((width - left - max(over, 0)) / wide, 40)
    above = (longest * 0.71 + 16 if turned else 20) if heads else 2
    above += 20 if column_title else 0

    parts = _colours(cells, left, above, size, full)
    parts.append(
        f'<path d="M{dot(left)} {dot(above)}h{dot(wide * size)}v{dot(tall * size)}'
        f'h-{dot(wide * size)}z" fill="none" stroke="currentColor" stroke-opacity=".35"/>'
    )
    for i, name in enumerate(names):
        parts.append(text(left - 6, above + (i + 0.5) * size + 4.5, name, "end"))
    for j, head in enumerate(heads):
        x, y = left + (j + 0.5) * size, above - 6
        slant = f' transform="rotate(-45 {dot(x)} {dot(y)})"' if turned else ""
        parts.append(text(x, y, head, "start" if turned else "middle", slant))
    if column_title:
        parts.append(text(left + wide * size / 2, 13, column_title, "middle", ' font-weight="600"'))
    if row_title:
        y = above + tall * size / 2
        turn = f' font-weight="600" transform="rotate(-90 13 {dot(y)})"'
        parts.append(text(13, y, row_title, "middle", turn))
    written = [format(value, form) for value in flat]
    fits = max(text_width(word, 10.5) for word in written) <= size - 3 and tall * wide <= 120
    if fits if values is None else values:
        small = min(13.0, 13 * (size - 3) / max(map(text_width, written)))
        middle = [
            text(left + (i % wide + 0.5) * size, above + (i // wide + 0.5) * size + 4, word)
            for i, word in enumerate(written)
            if flat[i]
        ]
        parts.append(f'<g text-anchor="middle" font-size="{dot(small)}">{"".join(middle)}</g>')
    right = left + wide * size + max(over, 0) + 2
    return Picture(drawing(right, above + tall * size + 2, parts), alt)


def _colours(
    cells: list[list[float]], left: Number, above: Number, size: Number, full: Number
) -> list[str]:
    # one path for each shade, and neighbours of one shade in one piece: small even at 100 x 100
    paths: dict[int, list[str]] = {}
    for i, row in enumerate(cells):
        shades = [round(max(-1.0, min(value / full, 1.0)) * _STEPS) for value in row]
        start = 0
        for j in range(1, len(shades) + 1):
            if j == len(shades) or shades[j] != shades[start]:
                if shades[start]:
                    paths.setdefault(shades[start], []).append(
                        f"M{dot(left + start * size)} {dot(above + i * size)}"
                        f"h{dot((j - start) * size)}v{dot(size)}h-{dot((j - start) * size)}z"
                    )
                start = j
    return [
        f'<path d="{"".join(path)}" style="fill:{SERIES[shade < 0]};'
        f'fill-opacity:{abs(shade) / _STEPS * _DARKEST:.2f}"/>'
        for shade, path in sorted(paths.items())
    ]
