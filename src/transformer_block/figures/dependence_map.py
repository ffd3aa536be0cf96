"""Which output depends on which head: a Jacobian, its columns gathered by head."""

import math
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

_LEFT, _RIGHT, _TOP, _GAP, _SHADES = 22, 46, 38, 4, 3


def dependence(J: Any, n_heads: int, *, width: Number = 400) -> Picture:
    """Draw a Jacobian ∂output/∂reports, one colour a head, and count the heads of each row.

    Args:
        J: a row for each coordinate of the output, a column for each number the heads report,
            head after head. The larger the derivative, the stronger the colour; 0 stays empty.
        n_heads: how many heads share the columns evenly.
        width: how wide the drawing becomes at most.

    Raises:
        ValueError: no matrix of finite numbers, or heads that do not share its columns evenly.

    >>> dependence([[1.0, 0.0], [0.5, 2.0]], n_heads=2)
    2 coordinates and the reports of 2 heads: each coordinate depends on 1 to 2 heads.
    """
    rows = numbers(J)
    wide = len(rows[0]) if rows and isinstance(rows[0], list) else 0
    if not wide or any(not isinstance(row, list) or len(row) != wide for row in rows):
        raise ValueError("dependence needs a matrix: rows of numbers, all of one length")
    if n_heads < 1 or wide % n_heads:
        raise ValueError(f"{n_heads} heads cannot share {wide} columns evenly")
    finite([value for row in rows for value in row], "dependence")
    d_head = wide // n_heads
    full = max(abs(value) for row in rows for value in row) or 1.0
    read = [sum(any(row[i * d_head : (i + 1) * d_head]) for i in range(n_heads)) for row in rows]

    size = min((width - _LEFT - _RIGHT - _GAP * (n_heads - 1)) / wide, 24)
    end = _LEFT + wide * size + _GAP * (n_heads - 1)
    parts = [text((_LEFT + end) / 2, 13, "numbers the heads report", "middle")]
    for i in range(n_heads):
        x = _LEFT + i * (d_head * size + _GAP)
        name = next((n for n in (f"head {i + 1}", f"{i + 1}") if text_width(n) < d_head * size), "")
        parts += [text(x + d_head * size / 2, _TOP - 6, name, "middle")] if name else []
        parts += _band([row[i * d_head : (i + 1) * d_head] for row in rows], x, size, full, i)
    turn = f' transform="rotate(-90 13 {dot(_TOP + len(rows) * size / 2)})"'
    parts.append(text(13, _TOP + len(rows) * size / 2, "coordinate of the output", "middle", turn))
    parts.append(text(end + 8, _TOP - 6, "heads"))
    small = min(13.0, size * 0.9)
    counts = [text(end + 24, _TOP + (r + 0.8) * size, n, "middle") for r, n in enumerate(read)]
    parts.append(f'<g font-size="{dot(small)}">{"".join(counts)}</g>')
    return Picture(drawing(end + _RIGHT, _TOP + len(rows) * size + 2, parts), _said(read, n_heads))


def _band(cells: list[list[float]], x: Number, size: Number, full: Number, head: int) -> list[str]:
    # one path a shade, and neighbours of one shade in one piece
    paths: dict[int, list[str]] = {}
    for r, row in enumerate(cells):
        shades = [math.ceil(abs(value) / full * _SHADES) for value in row]
        start = 0
        for j in range(1, len(shades) + 1):
            if j == len(shades) or shades[j] != shades[start]:
                if shades[start]:
                    paths.setdefault(shades[start], []).append(
                        f"M{dot(x + start * size)} {dot(_TOP + r * size)}"
                        f"h{dot((j - start) * size)}v{dot(size)}h-{dot((j - start) * size)}z"
                    )
                start = j
    colour = SERIES[head % len(SERIES)]
    drawn = [
        f'<path d="{"".join(path)}" style="fill:{colour};fill-opacity:{0.1 + 0.25 * shade:.2f}"/>'
        for shade, path in sorted(paths.items())
    ]
    frame = f"M{dot(x)} {_TOP}h{dot(len(cells[0]) * size)}v{dot(len(cells) * size)}"
    drawn.append(
        f'<path d="{frame}h-{dot(len(cells[0]) * size)}z" fill="none" stroke="currentColor" '
        'stroke-opacity=".35"/>'
    )
    return drawn


def _said(read: list[int], n_heads: int) -> str:
    few, many = min(read), max(read)
    which = f"{few}" if few == many else f"{few} to {many}"
    return (
        f"{len(read)} coordinates and the reports of {n_heads} "
        f"head{'s' if n_heads > 1 else ''}: each coordinate depends on {which} "
        f"head{'s' if many > 1 else ''}."
    )
