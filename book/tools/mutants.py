"""Plant random small mistakes in the package, and say which of them the tests do not catch.

    python -m book.tools.mutants                    # 200 mistakes in rungs 1 to 5
    python -m book.tools.mutants --only norm block --count 50 --seed 3

A mistake is one operator, comparison, constant, `and`/`or`, `not` or default turned round. It is
planted in the source as it is imported, in a process of its own; the files stay as they are. There
the doctests of the module and the unit tests of `TESTS` run until the first failure. A mistake
that no test fails on survives, unless its line is listed in `EQUIVALENT` with the reason why it
changes nothing that anybody can see.
"""

import argparse
import ast
import doctest
import multiprocessing
import os
import random
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from itertools import accumulate, compress
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "transformer_block"
CAUGHT_SHARE = 0.95
# A server that has loaded what every run needs, but not the package, forks a process for each run.
PROCESSES = multiprocessing.get_context("spawn" if sys.platform == "win32" else "forkserver")
TIME_LIMIT = 300  # seconds for one mistake; one that makes the tests hang counts as caught

# module → its unit tests, the quickest first
TESTS = {
    "_checks": ("checks", "multi_head"),
    "attention": ("attention", "multi_head"),
    "norm": ("norm",),
    "feed_forward": ("feed_forward",),
    "multi_head": ("multi_head", "checks"),
    "block": ("block", "checks"),
    "config": ("config",),
    "language_model": ("language_model", "checks"),
    "ablation": ("ablation",),
    "counting": ("counting",),
    "generation": ("generation",),
    "checkpoint": ("checkpoint",),
    "activations.taps": ("activations",),
    "activations.editing": ("activations",),
    "activations.recording": ("activations",),
}

# (module, part of the source line): why a mistake there changes nothing that can be seen
EQUIVALENT = {
    ("generation", "GREEDY_BELOW"): "any limit far under the temperatures that matter serves",
    ("activations.taps", "cutoff"): "how like a name must be to be hinted at is taste",
}

SWAPS: dict[type, Any] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.MatMult: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One mistake: where it stands, and the module's whole source with it."""

    module: str
    line: int
    before: str
    after: str
    source: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line}\n    - {self.before}\n    + {self.after}"

    @property
    def reason(self) -> str | None:
        """Why it changes nothing, if it is listed as such."""
        line = file_of(self.module).read_text("utf-8").splitlines()[self.line - 1]
        for (module, part), why in EQUIVALENT.items():
            if module == self.module and part in line:
                return why
        return None


def file_of(module: str) -> Path:
    """Return where a module of the package stands."""
    return PACKAGE.joinpath(*module.split(".")).with_suffix(".py")


def mistakes(module: str) -> Iterator[Mutant]:
    """Yield every small mistake that can be planted in a module."""
    source = file_of(module).read_text("utf-8")
    tree = ast.parse(source)
    messages = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    said = {inner for message in messages for inner in ast.walk(message)}
    lines = source.encode().splitlines(keepends=True)
    starts = [0, *accumulate(map(len, lines))]
    for node in ast.walk(tree):
        if node in said or not isinstance(node, ast.expr) or (turned := _turned(node)) is None:
            continue
        assert node.end_lineno is not None and node.end_col_offset is not None  # noqa: S101, PT018 (for mypy)
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        text = ast.unparse(turned)
        whole = source.encode()
        changed = (whole[:start] + f"({text})".encode() + whole[end:]).decode()
        yield Mutant(module, node.lineno, ast.unparse(node), text, changed)


def _turned(node: ast.expr) -> ast.expr | None:
    """Return what an expression could be by mistake."""
    match node:
        case ast.BinOp(left, op, right) if type(op) in SWAPS:
            return ast.BinOp(left, SWAPS[type(op)](), right)
        case ast.BoolOp(op, values):
            return ast.BoolOp(SWAPS[type(op)](), values)
        case ast.Compare(left, [op, *others], values) if type(op) in SWAPS:
            return ast.Compare(left, [SWAPS[type(op)](), *others], values)
        case ast.UnaryOp(ast.Not() | ast.Invert(), operand):
            return operand
        case ast.Constant(bool(value)):
            return ast.Constant(not value)
        case ast.Constant(int(value) | float(value)):
            return ast.Constant(value + 1)
    return None


def survives(mutant: Mutant) -> bool:
    """Run the tests of the module with the mistake planted; True if none of them fails."""
    child = PROCESSES.Process(  # type: ignore[attr-defined]  # every context has it
        target=run_planted, args=(mutant.module, mutant.source)
    )
    child.start()
    child.join(TIME_LIMIT)
    if child.exitcode is None:
        child.kill()
        child.join()
    return child.exitcode == 0


class _Planted(MetaPathFinder, Loader):
    """Import one module from a text, as if it stood in its file."""

    def __init__(self, module: str, source: str) -> None:
        self.name, self.path, self.source = f"transformer_block.{module}", file_of(module), source

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        """Answer for the one module."""
        if fullname != self.name:
            return None
        return spec_from_file_location(fullname, self.path, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        """Run the text."""
        exec(compile(self.source, self.path, "exec"), vars(module))  # noqa: S102 (our own source)


def run_planted(module: str, source: str, quiet: bool = True) -> None:
    """Run a module's tests in this process with another source of it, and exit: 0 if all pass."""
    import pytest

    if quiet:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT / "src"))
    sys.meta_path.insert(0, _Planted(module, source))
    if doctest.testmod(import_module(f"transformer_block.{module}"), verbose=False).failed:
        sys.exit(1)
    # In place of the project's own options: no shape checker, no notebooks, one process.
    settings = [
        "-o",
        "addopts=--import-mode=importlib --strict-markers",
        "-p",
        "no:cacheprovider",
        "--assert=plain",
    ]
    tests = [f"tests/package/test_{test}.py" for test in TESTS[module]]
    sys.exit(pytest.main(["-x", "-q", *settings, *tests]))


def main(arguments: list[str] | None = None) -> int:
    """Plant, run, print the survivors and the share that was caught."""
    parser = argparse.ArgumentParser(prog="python -m book.tools.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="how many mistakes (200)")
    parser.add_argument("--seed", type=int, default=0, help="which (0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at a time (cores)")
    parser.add_argument("--only", nargs="+", choices=TESTS, default=list(TESTS), metavar="MODULE")
    asked = parser.parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = "1"
    if sys.platform != "win32":
        PROCESSES.set_forkserver_preload(["torch", "pytest", "hypothesis", "jaxtyping"])
    for module in asked.only:  # tests that fail without a mistake would catch every one
        if not survives(Mutant(module, 0, "", "", file_of(module).read_text("utf-8"))):
            print(f"the tests of {module} fail as they are", file=sys.stderr)
            return 1
    possible = [mutant for module in asked.only for mutant in mistakes(module)]
    draw = random.Random(asked.seed)  # noqa: S311 (nothing secret)
    chosen = draw.sample(possible, min(asked.count, len(possible)))
    with ThreadPoolExecutor(asked.jobs) as pool:
        alive = list(pool.map(survives, chosen))
    survivors = list(compress(chosen, alive))
    unexplained = [mutant for mutant in survivors if mutant.reason is None]
    for mutant in survivors:
        print(mutant if mutant.reason is None else f"{mutant}\n    ({mutant.reason})")
    real = len(chosen) - len(survivors) + len(unexplained)
    share = 1 - len(unexplained) / real if real else 1.0
    print(
        f"{len(chosen)} of {len(possible)} mistakes planted (seed {asked.seed}): "
        f"{len(chosen) - len(survivors)} caught, {len(unexplained)} survived, "
        f"{len(survivors) - len(unexplained)} change nothing; {share:.1%} caught"
    )
    return share < CAUGHT_SHARE


if __name__ == "__main__":
    sys.exit(main())
