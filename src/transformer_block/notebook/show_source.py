"""Show the package's own code in a chapter, so that nothing is written twice."""

import ast
import inspect
import textwrap
from collections.abc import Callable


class Source:
    """Python code that a notebook shows highlighted."""

    def __init__(self, name: str, code: str) -> None:
        self.name, self.code = name, code

    def _repr_markdown_(self) -> str:
        return f"```python\n{self.code}\n```"

    def __repr__(self) -> str:
        return f"source of {self.name}"


def show_source(
    thing: type | Callable[..., object], *more: type | Callable[..., object], docstring: bool = True
) -> Source:
    """Show the code of classes and functions as it stands in the package.

    Args:
        thing: a class, function or method.
        more: others to show beneath it.
        docstring: False leaves out every docstring after its first line, to save room.

    Raises:
        ValueError: there is no Python source, as for what is written in C.

    >>> from transformer_block import causal_mask
    >>> show_source(causal_mask)
    source of causal_mask
    """
    parts = (thing, *more)
    code = "\n\n\n".join(_code(part, docstring) for part in parts)
    return Source(", ".join(_name(part) for part in parts), code)


def _name(thing: object) -> str:
    return str(getattr(thing, "__qualname__", type(thing).__name__))


def _code(thing: type | Callable[..., object], docstring: bool) -> str:
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
