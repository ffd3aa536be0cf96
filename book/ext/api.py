"""The package's docstrings, which are written as Markdown is, on the API page."""

import re
from typing import Any

from sphinx.application import Sphinx


def as_rest(lines: list[str]) -> list[str]:
    """Turn code in single backticks and Markdown tables into reStructuredText.

    >>> print(*as_rest(["Of `X`:", "| a | b |", "|---|---|", "| 1 | `2` |"]), sep="|")
    Of ``X``:||.. list-table::|   :header-rows: 1||   * - a|     - b|   * - 1|     - ``2``|
    """
    made: list[str] = []
    inside = False
    for line in lines:
        text = re.sub(r"(?<![`:])`([^`]+)`(?![`_])", r"``\1``", line)
        row = re.fullmatch(r"(\s*)\|(.*)\|\s*", text)
        if row is None:
            made += [""] * inside + [text]
            inside = False
            continue
        if not re.fullmatch(r"[\s|:-]+", row[2]):
            if not inside:
                made += ["", f"{row[1]}.. list-table::", f"{row[1]}   :header-rows: 1", ""]
            first, *others = (cell.strip() for cell in row[2].split("|"))
            made += [f"{row[1]}   * - {first}", *(f"{row[1]}     - {cell}" for cell in others)]
        inside = True
    return made + [""] * inside


def rewrite(
    _app: Sphinx, _what: str, _name: str, _obj: object, _options: object, lines: list[str]
) -> None:
    """Rewrite a docstring in place, before napoleon reads its sections."""
    lines[:] = as_rest(lines)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to autodoc, where that is used."""
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-docstring", rewrite, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
