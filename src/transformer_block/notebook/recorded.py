"""Read recorded studies: experiments over several seeds that a chapter has no time to run.

A study is a module of `notebook.studies` with three names: `SETTINGS`, a list of keyword
arguments; `SEEDS`; and `row(seed, **setting)`, which returns what was measured, numbers or lists
of numbers by name. Beside it lies a .json file with one row for each setting and seed, and the
digest of the code that made it. `python -m book.tools.studies` writes that file.
"""

import ast
import hashlib
import importlib
import json
import math
from pathlib import Path
from typing import Any

import torch

SOURCE = Path(__file__).parents[2]
_STUDIES = "transformer_block.notebook.studies"

Row = dict[str, Any]


def study(name: str, **where: object) -> list[Row]:
    """Return the recorded rows of a study: setting, seed and what was measured, by name.

    `where` keeps the rows that have these values; the order is that of settings, then seeds.

    Raises:
        ValueError: there is no such study, it has not been recorded, or no row has these values.
    """
    _module(name)
    file = _file_of(name)
    if not file.is_file():
        raise ValueError(f"{name!r} has no rows yet; run python -m book.tools.studies {name}")
    rows: list[Row] = json.loads(file.read_text("utf-8"))["rows"]
    kept = [row for row in rows if all(row.get(key) == value for key, value in where.items())]
    if not kept:
        known = [key for key in rows[0] if not isinstance(rows[0][key], list)]
        raise ValueError(f"no row of {name!r} has {where}; its rows are told apart by {known}")
    return kept


def names() -> list[str]:
    """Return the names of all studies."""
    folder = SOURCE.joinpath(*_STUDIES.split("."))
    return sorted(file.stem for file in folder.glob("*.py") if not file.stem.startswith("_"))


def settings(name: str) -> list[tuple[int, Row]]:
    """Return the seed and the setting of each row of a study."""
    module = _module(name)
    return [(seed, setting) for setting in module.SETTINGS for seed in module.SEEDS]


def run_row(name: str, seed: int, setting: Row) -> Row:
    """Measure one row anew, on one thread; numbers are kept to four digits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        torch.manual_seed(seed)
        measured = _module(name).row(seed, **setting)
    finally:
        torch.set_num_threads(threads)
    return {**setting, "seed": seed, **{key: _short(value) for key, value in measured.items()}}


def record(name: str, rows: list[Row], made_from: str) -> None:
    """Write the rows of a study beside its module, with the digest of the code that made them."""
    lines = ",\n".join(json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows)
    head = json.dumps({"torch": torch.__version__.split("+")[0], "made_from": made_from})
    _file_of(name).write_text(f'{head[:-1]}, "rows": [\n{lines}\n]}}\n', "utf-8", newline="\n")


def is_stale(name: str) -> bool:
    """Tell whether a study has no rows, or rows that other code made."""
    file = _file_of(name)
    return not file.is_file() or json.loads(file.read_text("utf-8"))["made_from"] != digest(name)


def agree(one: Row, other: Row, near: float = 0.05) -> bool:
    """Tell whether two rows say the same, numbers to within a share `near` of them."""
    return one.keys() == other.keys() and all(_near(one[key], other[key], near) for key in one)


def digest(name: str, source: Path = SOURCE) -> str:
    """Return a fingerprint of all the package's code that a study runs.

    That is its module and what it imports from the package, directly or not. Docstrings and
    lines of comment do not count.
    """
    total = hashlib.sha256()
    waiting, done = [f"{_STUDIES}.{name}"], dict[str, str]()
    while waiting:
        module = waiting.pop()
        file = _source_file(module, source)
        if file is None or module in done:
            continue
        code = file.read_text("utf-8")
        tree = ast.parse(code)
        done[module] = _bare(code, tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                parts = [f"{node.module}.{alias.name}" for alias in node.names]
                waiting += [p if _source_file(p, source) else node.module for p in parts]
            elif isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names]
    for module, code in sorted(done.items()):
        total.update(f"{module}:{len(code)}:{code}".encode())
    return total.hexdigest()


def _module(name: str) -> Any:
    if name not in names():
        raise ValueError(f"there is no study {name!r}; there are {', '.join(names())}")
    return importlib.import_module(f"{_STUDIES}.{name}")


def _file_of(name: str) -> Path:
    return SOURCE.joinpath(*_STUDIES.split("."), f"{name}.json")


def _source_file(module: str, source: Path) -> Path | None:
    """Return the file of a module of the package, or None for any other name."""
    if module.split(".")[0] != "transformer_block":
        return None
    place = source.joinpath(*module.split("."))
    for file in (place.with_suffix(".py"), place / "__init__.py"):
        if file.is_file():
            return file
    return None


def _bare(code: str, tree: ast.Module) -> str:
    """Return the code without docstrings, blank lines and lines of comment."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    dropped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            dropped |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = enumerate(code.splitlines(), 1)
    kept = [line for i, line in lines if i not in dropped and line.strip()]
    return "\n".join(line for line in kept if not line.lstrip().startswith("#"))


def _short(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_short(v) for v in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _near(one: Any, other: Any, near: float) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(
            _near(a, b, near) for a, b in zip(one, other, strict=True)
        )
    if isinstance(one, float) and isinstance(other, (int, float)):
        return math.isclose(one, other, rel_tol=near, abs_tol=1e-3 * near)
    return bool(one == other)
