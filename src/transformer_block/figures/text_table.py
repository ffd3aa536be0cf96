"""A table of values that a cell has measured."""

from collections.abc import Sequence
from html import escape

_CELL = "padding:.25em .8em;border-bottom:1px solid color-mix(in srgb,currentColor 25%,transparent)"


class Table:
    """Rows under a header, as HTML and as aligned text."""

    def __init__(self, rows: list[list[str]], header: list[str], right: list[bool]) -> None:
        self.rows, self.header, self.right = rows, header, right

    def _repr_html_(self) -> str:
        sides = [f"text-align:{'right' if right else 'left'};{_CELL}" for right in self.right]
        head = "".join(
            f'<th scope="col" style="{side}">{escape(word)}</th>'
            for word, side in zip(self.header, sides, strict=True)
        )
        body = "".join(
            "<tr>"
            + "".join(
                f'<td style="{side}">{escape(word)}</td>'
                for word, side in zip(row, sides, strict=True)
            )
            + "</tr>"
            for row in self.rows
        )
        # the box can be scrolled by keyboard where the table is wider than a phone
        return (
            '<div class="tb-table" style="overflow-x:auto" tabindex="0" role="group" '
            f'aria-label="table: {escape(", ".join(self.header))}">'
            '<table style="border-collapse:collapse;font-variant-numeric:tabular-nums;'
            f'color:inherit;margin:.3em 0"><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>"
        )

    def __repr__(self) -> str:
        lines = [self.header, *self.rows]
        wide = [max(len(line[i]) for line in lines) for i in range(len(self.header))]
        return "\n".join(
            "  ".join(
                word.rjust(w) if right else word.ljust(w)
                for word, w, right in zip(line, wide, self.right, strict=True)
            ).rstrip()
            for line in lines
        )


def table(rows: Sequence[Sequence[object]], header: Sequence[str], *, form: str = ".3f") -> Table:
    """Show rows under a header; columns of numbers stand to the right.

    Args:
        rows: cells of any kind; whole numbers get thousands marks, floats the given form.
        header: one word a column.
        form: how floats are written, as after the colon of an f-string.

    Raises:
        ValueError: no rows, or a row of another length than the header.

    >>> table([["heads", 2], ["width", 1024]], ["part", "size"])
    part    size
    heads      2
    width  1,024
    """
    if not rows or any(len(row) != len(header) for row in rows):
        raise ValueError(
            f"each row needs {len(header)} cells, as the header has; got {[len(r) for r in rows]}"
        )
    right = [all(_is_number(row[i]) for row in rows) for i in range(len(header))]
    return Table([[_said(cell, form) for cell in row] for row in rows], list(header), right)


def _is_number(cell: object) -> bool:
    return isinstance(cell, (int, float)) and not isinstance(cell, bool)


def _said(cell: object, form: str) -> str:
    if isinstance(cell, float):
        return format(cell, form)
    return f"{cell:,}" if _is_number(cell) else str(cell)
