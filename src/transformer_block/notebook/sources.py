"""Show the package's own code in a chapter, so that nothing is written twice or hidden."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable
from html import escape

from transformer_block.experiments.recorded import Row, study_named

Shown = type | Callable[..., object]


class Source:
    """Python code that a notebook shows highlighted, under a fold if it has a label."""

    def __init__(self, said: str, code: str, fold: str = "", notes: str = "") -> None:
        self.code, self.fold, self.notes, self._said = code, fold, notes, said

    def _repr_markdown_(self) -> str:
        # longer than any fence in the code, which would end it
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", self.code)), default=0))
        shown = f"{self.notes}{fence}python\n{self.code}\n{fence}"
        if not self.fold:
            return shown
        # the empty lines end the HTML, so that what lies between them is Markdown everywhere
        return f"<details><summary>{escape(self.fold)}</summary>\n\n{shown}\n\n</details>"

    def __repr__(self) -> str:
        return self._said


def show_source(thing: Shown, *more: Shown, docstring: bool = True, fold: str = "") -> Source:
    """Show the code of classes and functions as it stands in the package.

    Args:
        thing: a class, function, method or recorded study.
        more: others to show beneath it.
        docstring: False leaves out every docstring after its first line, to save room.
        fold: puts the code under a fold of this label; say what is inside.

    Raises:
        ValueError: there is no Python source, as for what is written in C.

    >>> from transformer_block import causal_mask
    >>> show_source(causal_mask, fold="How the mask is made")
    source of causal_mask
    """
    parts = (thing, *more)
    said = f"source of {', '.join(map(_name, parts))}"
    return Source(said, _codes(parts, docstring), fold)


def show_study(name: str, *helpers: Shown) -> Source:
    """Show under a fold how a recorded study was made: what it measures, its code, its settings.

    Args:
        name: the study, as `study(name)` reads its rows.
        helpers: functions and classes that it rests on, to show beneath it.

    Raises:
        ValueError: there is no such study, or a helper has no Python source.

    >>> show_study("facts_stored")
    how the study facts_stored was made
    """
    study = study_named(name)
    settings, seeds = list(study.settings), list(study.seeds)
    many = f"{len(settings)} setting{'s' if len(settings) > 1 else ''}"
    notes = (
        f"{inspect.cleandoc(study.__doc__ or '').partition(chr(10) * 2)[0]}\n\n"
        f"{many}: {_said(settings)}. "
        f"Seeds of each: {', '.join(map(str, seeds))}. "
        f"Recorded with torch {study.stored().get('torch', '(not yet recorded)')}.\n\n"
    )
    fold = f"The recorded study: {name}, {len(settings) * len(seeds)} runs"
    code = _codes((study, *helpers), docstring=True)
    return Source(f"how the study {name} was made", code, fold, notes)


def _said(settings: list[Row]) -> str:
    """Say the values of each name; which of their pairings are meant, the code says."""
    values = {key: dict.fromkeys(row[key] for row in settings) for key in settings[0]}
    return "; ".join(f"`{key} = {', '.join(map(repr, vs))}`" for key, vs in values.items())


def _name(thing: object) -> str:
    return str(getattr(thing, "__qualname__", type(thing).__name__))


def _codes(parts: tuple[Shown, ...], docstring: bool) -> str:
    return "\n\n\n".join(_code(part, docstring) for part in parts)


def _code(thing: Shown, docstring: bool) -> str:
    try:
        code = textwrap.dedent(inspect.getsource(thing)).rstrip()
    except (OSError, TypeError) as reason:
        raise ValueError(
            f"{_name(thing)} has no Python source to show; name a class or function, not a value"
        ) from reason
    return code if docstring else _first_lines_only(code)


def _first_lines_only(code: str) -> str:
    lines: list[str] = code.splitlines()
    documented = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [
        node.body[0]
        for node in ast.walk(ast.parse(code))
        if isinstance(node, documented) and ast.get_docstring(node)
    ]
    for text in sorted(found, key=lambda node: -node.lineno):
        end = text.end_lineno or text.lineno
        if end > text.lineno:
            lines[text.lineno - 1 : end] = [lines[text.lineno - 1].rstrip() + '"""']
    return "\n".join(lines)
