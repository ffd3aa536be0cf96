"""The house stands as DECISIONS.md and CONTRIBUTING.md describe it."""

import ast
import itertools
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "transformer_block"
CORE = [
    "attention",
    "norm",
    "feed_forward",
    "multi_head",
    "block",
    "config",
    "language_model",
]  # rungs 1 to 4


def tracked():
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name]


def code_lines(source):
    """Count the lines that are neither blank, nor comment, nor docstring."""
    tree = ast.parse(source)
    documents = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(
            node
        ):
            text = node.body[0]
            documents |= set(range(text.lineno, text.end_lineno + 1))
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in documents
        for number, line in enumerate(source.splitlines(), 1)
    )


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "DECISIONS.md",
        "LICENSE",
        "CITATION.cff",
        "Makefile",
        "pyproject.toml",
        "constraints.txt",
        "environment.yml",
        "_config.yml",
        "book/_toc.yml",
        "book/claims.yml",
        "book/references.bib",
    ],
)
def test_the_file_is_there_and_says_something(name):
    assert (ROOT / name).read_text("utf-8").strip()


def test_the_core_is_short():
    lengths = {name: (PACKAGE / f"{name}.py").read_text("utf-8") for name in CORE}
    assert {name for name, source in lengths.items() if len(source.splitlines()) > 120} == set()
    assert sum(map(code_lines, lengths.values())) <= 350


def test_lines_are_counted_as_said():
    assert (
        code_lines('"""A.\n\nB.\n"""\n\n# c\nx = 1\n\ndef f():\n    """D."""\n    return 1\n') == 3
    )


def test_each_module_has_its_tests():
    names = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "_checks"}
    tests = {path.stem.removeprefix("test_") for path in (ROOT / "tests").glob("test_*.py")}
    assert names <= tests
    helpers = {path.stem for path in (PACKAGE / "notebook").glob("*.py")} - {"__init__"}
    assert helpers <= {
        path.stem.removeprefix("test_") for path in (ROOT / "tests" / "notebook").glob("test_*.py")
    }


def needed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    return [*project["dependencies"], *itertools.chain.from_iterable(extras)]


def test_exact_versions_stand_in_one_place():
    assert [one for one in needed() if "==" in one] == [], "pyproject.toml gives lower bounds only"
    environment = (ROOT / "environment.yml").read_text("utf-8")
    assert not re.search(r"^\s*- (?!python\b|pip\b)[\w-]+\s*=", environment, flags=re.M)
    pins = [
        line
        for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
        if line.strip() and not line.lstrip().startswith("#")
    ]
    assert [line for line in pins if not re.match(r"[\w.-]+==[\w.!+-]+(\s*;.*)?$", line)] == []
    assert len({line.split("==")[0].lower().replace("_", "-") for line in pins}) >= 20


def test_what_the_project_needs_is_pinned():
    wanted = {re.match(r"[\w.-]+", one)[0].lower().replace("_", "-") for one in needed()}
    pinned = {
        line.split("==")[0].strip().lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    }
    assert wanted - pinned - {"transformer-block"} == set()


def test_nothing_built_is_committed():
    built = re.compile(r"(^|/)(_build|node_modules|\.venv|__pycache__|vendor)/|\.(woff2?|pyc)$")
    assert [p for p in tracked() if built.search(p.relative_to(ROOT).as_posix())] == []


def test_no_file_is_large():
    large = {p.name: p.stat().st_size for p in tracked() if p.is_file()}
    assert {name: size for name, size in large.items() if size >= 1_000_000} == {}


def test_there_is_no_class_around_the_plus_sign():
    assert not (PACKAGE / "residual.py").exists()
