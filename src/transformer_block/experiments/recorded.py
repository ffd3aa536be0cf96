"""Recorded studies: experiments over several seeds that a chapter has no time to run.

A study is a function `name(seed, **setting)` of a module of `experiments`, marked `@recorded` with
its settings and seeds; it returns what was measured, numbers or lists of numbers by name. Beside
the module lies a .json file with a row for each setting and seed, and the fingerprint of the code
that made them. `python -m book.tools.studies` writes that file.
"""

import importlib
import json
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, update_wrapper
from pathlib import Path
from typing import Any

import torch

from transformer_block import experiments
from transformer_block.fingerprint import fingerprint
from transformer_block.training import plain_torch

Row = dict[str, Any]


@dataclass(eq=False)
class Study:
    """Hold an experiment with the settings and seeds it is recorded for; call it as a function."""

    function: Callable[..., Row]
    settings: Sequence[Row]
    seeds: Sequence[int]

    def __post_init__(self) -> None:
        """Take over the function's name, module and docstring."""
        update_wrapper(self, self.function)

    def __call__(self, seed: int, **setting: Any) -> Row:
        """Measure once, and return numbers or lists of numbers by name."""
        return self.function(seed, **setting)

    @property
    def name(self) -> str:
        """The function's name, by which chapters ask for it."""
        return self.function.__name__

    @property
    def file(self) -> Path:
        """Where the rows lie: beside the module, with those of its other studies."""
        return Path(experiments.__path__[0]) / f"{self.function.__module__.split('.')[-1]}.json"

    @property
    def fingerprint(self) -> str:
        """What the rows depend on."""
        return fingerprint(f"{self.function.__module__}.{self.name}")

    def wanted(self) -> list[tuple[int, Row]]:
        """Return the seed and the setting of each row."""
        return [(seed, setting) for setting in self.settings for seed in self.seeds]

    def measure(self, seed: int, setting: Row) -> Row:
        """Measure one row anew, on one thread; numbers are kept to four digits."""
        with plain_torch(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            measured = self(seed, **setting)
        return {**setting, "seed": seed, **{key: _short(value) for key, value in measured.items()}}

    def stored(self) -> Row:
        """Return what is stored: rows, torch's version and the fingerprint; empty if nothing is."""
        every: Row = json.loads(self.file.read_text("utf-8")) if self.file.is_file() else {}
        return every.get(self.name, {})

    def is_stale(self) -> bool:
        """Tell whether there are no rows, or rows that other code made."""
        return self.stored().get("made_from") != self.fingerprint

    def store(self, rows: list[Row], made_from: str) -> None:
        """Write the rows beside those of the module's other studies, a line each."""
        every = json.loads(self.file.read_text("utf-8")) if self.file.is_file() else {}
        torchs = torch.__version__.split("+")[0]
        every[self.name] = {"torch": torchs, "made_from": made_from, "rows": rows}
        blocks = []
        for name in sorted(every):
            kept = every[name]
            lines = ",\n".join(
                json.dumps(r, ensure_ascii=False, allow_nan=False) for r in kept["rows"]
            )
            head = json.dumps({"torch": kept["torch"], "made_from": kept["made_from"]})
            blocks.append(f'"{name}": {head[:-1]}, "rows": [\n{lines}\n]}}')
        text = "{\n" + ",\n".join(blocks) + "\n}\n"
        self.file.write_text(text, "utf-8", newline="\n")


def recorded(
    *, settings: Sequence[Row], seeds: Sequence[int]
) -> Callable[[Callable[..., Row]], Study]:
    """Mark a function of `experiments` as a study, recorded for these settings and seeds."""
    return lambda function: Study(function, settings, seeds)


@cache
def studies() -> dict[str, Study]:
    """Return all studies by name.

    Raises:
        ValueError: if two of them have one name.
    """
    found: dict[str, Study] = {}
    for module in pkgutil.iter_modules(experiments.__path__, f"{experiments.__name__}."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, Study) and value.function.__module__ == module.name:
                if value.name in found:
                    raise ValueError(f"two studies are called {value.name!r}; rename one")
                found[value.name] = value
    return dict(sorted(found.items()))


def study_named(name: str) -> Study:
    """Return a study.

    Raises:
        ValueError: naming those there are.
    """
    if name not in studies():
        raise ValueError(f"there is no study {name!r}; there are {', '.join(studies())}")
    return studies()[name]


def study(name: str, **where: object) -> list[Row]:
    """Return the recorded rows of a study: setting, seed and what was measured, by name.

    `where` keeps the rows that have these values; the order is that of settings, then seeds.

    Raises:
        ValueError: there is no such study, it has not been recorded, or no row has these values.
    """
    rows: list[Row] = study_named(name).stored().get("rows", [])
    if not rows:
        raise ValueError(f"{name!r} has no rows yet; run python -m book.tools.studies {name}")
    kept = [row for row in rows if all(row.get(key) == value for key, value in where.items())]
    if not kept:
        known = [key for key in rows[0] if not isinstance(rows[0][key], list)]
        raise ValueError(f"no row of {name!r} has {where}; its rows are told apart by {known}")
    return kept


def _short(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_short(v) for v in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value
