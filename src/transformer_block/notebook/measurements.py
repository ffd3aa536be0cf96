"""Write down what a verified sentence was measured at, for the book's page of claims.

Where the environment variable `TRANSFORMER_BLOCK_MEASURED` names a file, `verify` adds a line of
JSON to it: the sentence, and for each comparison in its condition both sides as numbers. Nothing
is written while a reader runs a chapter.
"""

import ast
import json
import math
import os
from pathlib import Path
from types import FrameType
from typing import Any

import torch

FILE = "TRANSFORMER_BLOCK_MEASURED"
ROUNDING = 1e-12  # below it stands what is left of sums that would be 0 in exact numbers
_SIGNS = {ast.Lt: "<", ast.LtE: "≤", ast.Gt: ">", ast.GtE: "≥", ast.Eq: "=", ast.NotEq: "≠"}


def write_down(sentence: str, frame: FrameType | None) -> None:
    """Add a sentence and its numbers to the file, if there is one.

    Args:
        sentence: what was verified.
        frame: where `verify(sentence, condition)` is being called.
    """
    if not (file := os.environ.get(FILE)):
        return
    import executing  # comes with IPython 8; only needed here

    condition = None
    while frame is not None and condition is None:  # a checker of types may stand in between
        call = executing.Source.executing(frame).node
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "verify":
            condition = call.args[1]
        else:
            frame = frame.f_back
    if condition is None or frame is None:
        return
    entry = {"sentence": sentence, "measured": comparisons(condition, frame)}
    with Path(file).open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(entry, ensure_ascii=False) + "\n")


def comparisons(condition: ast.AST, frame: FrameType) -> list[str]:
    """Return each comparison of numbers in a condition with its values: "0.83 > 0.6".

    In `all(a > b for …)` a side is the range of its values. What is no comparison of numbers, or
    cannot be computed again, is left out.
    """
    found = []
    for compare, loops in _compares(condition, ()):
        sides = [_range(side, loops, frame) for side in (compare.left, *compare.comparators)]
        signs = [_SIGNS.get(type(op)) for op in compare.ops]
        if all(sides) and all(signs):
            words = [word for pair in zip(sides, [*signs, None], strict=True) for word in pair]
            found.append(" ".join(word for word in words if word))
    return found


def _compares(
    node: ast.AST, loops: tuple[ast.comprehension, ...]
) -> list[tuple[ast.Compare, tuple[ast.comprehension, ...]]]:
    if isinstance(node, ast.Compare):
        return [(node, loops)]
    if isinstance(node, ast.GeneratorExp | ast.ListComp):
        return _compares(node.elt, (*loops, *node.generators))
    return [one for child in ast.iter_child_nodes(node) for one in _compares(child, loops)]


def _range(side: ast.expr, loops: tuple[ast.comprehension, ...], frame: FrameType) -> str | None:
    """Return the value of one side as text, or the least and largest of its values."""
    expression = ast.ListComp(side, list(loops)) if loops else ast.List([side], ast.Load())
    code = ast.fix_missing_locations(ast.Expression(expression))
    try:
        world = {**frame.f_globals, **frame.f_locals}
        values = eval(compile(code, "<condition>", "eval"), world)  # noqa: S307  # the book's own code
        numbers = [number for value in values for number in _numbers(value)]
    except Exception:  # what cannot be computed a second time is not written down
        return None
    if not numbers or not all(map(math.isfinite, numbers)):
        return None
    asked = isinstance(side, ast.Constant)
    low, high = (_text(number, asked) for number in (min(numbers), max(numbers)))
    return low if low == high else f"{low} … {high}"


def _text(number: float, asked: bool) -> str:
    """Return a number as text; what rounding leaves is another number in each run."""
    return "≈ 0" if 0 < abs(number) < ROUNDING and not asked else f"{number:.3g}"


def _numbers(value: Any) -> list[float]:
    if isinstance(value, bool):
        return []
    if isinstance(value, int | float):
        return [float(value)]
    if isinstance(value, torch.Tensor) and value.dtype != torch.bool and value.numel():
        return [float(value.detach().min()), float(value.detach().max())]
    raise ValueError("no number")
