"""The house stands as DECISIONS.md and CONTRIBUTING.md describe it."""

import ast
import graphlib
import itertools
import re
import subprocess
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
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


def test_what_a_visitor_looks_for_is_there():
    for name in ("README", "CONTRIBUTING", "CHANGELOG", "DECISIONS"):
        assert (ROOT / f"{name}.md").read_text("utf-8").startswith("# ")
    assert (ROOT / "LICENSE").is_file()


def test_the_core_is_short():
    lengths = {name: (PACKAGE / f"{name}.py").read_text("utf-8") for name in CORE}
    assert {name for name, source in lengths.items() if len(source.splitlines()) > 120} == set()
    assert sum(map(code_lines, lengths.values())) <= 350


def test_lines_are_counted_as_said():
    assert (
        code_lines('"""A.\n\nB.\n"""\n\n# c\nx = 1\n\ndef f():\n    """D."""\n    return 1\n') == 3
    )


def rooms(package=PACKAGE):
    """Return the package's rooms and single modules with the lines of their code."""
    found = {}
    for path in package.rglob("*.py"):
        room = path.relative_to(package).parts[0].removesuffix(".py")
        found[room] = found.get(room, 0) + code_lines(path.read_text("utf-8"))
    return found


def test_no_room_is_too_large():
    lines = rooms()
    # a shelf with a file for each chapter grows with the book; there each file is a room
    del lines["experiments"]
    for path in (PACKAGE / "experiments").glob("*.py"):
        lines[f"experiments/{path.stem}"] = code_lines(path.read_text("utf-8"))
    room = max(lines, key=lines.get)
    share = lines[room] / sum(lines.values())
    assert share < 0.3, f"{room} holds {share:.0%} of the package's lines: make two rooms of it"


def test_each_module_has_its_tests():
    tests = ROOT / "tests"
    single = rooms().keys() - {
        "__init__",
        "_causal",
        "_checks",
        "experiments",
        "figures",
        "notebook",
    }
    wanted = {tests / "package": single}
    for room in ("notebook", "experiments"):
        modules = {path.stem for path in (PACKAGE / room).glob("*.py")} - {"__init__"}
        wanted[tests / room] = modules
    lacking = [
        f"{folder.name}/{name}"
        for folder, names in wanted.items()
        for name in sorted(names)
        if not list(folder.glob(f"test_{name}*.py"))
    ]
    assert lacking == []
    assert list((tests / "figures").glob("test_*.py"))


def hidden_modules(package):
    """Return the modules and rooms that a name of the package above them hides."""
    faults = []
    for init in package.rglob("__init__.py"):
        folder = init.parent
        names = {path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()}
        for node in ast.parse(init.read_text("utf-8")).body:
            defined = [getattr(node, "name", None)]
            if isinstance(node, ast.ImportFrom):
                # `from package import module` names the module itself and hides nothing
                itself = f"{package.name}.{'.'.join(folder.relative_to(package).parts)}".strip(".")
                taken = () if node.module == itself else node.names
                defined = [alias.asname or alias.name for alias in taken]
            faults += [f"{folder.name}.{name}" for name in defined if name in names]
    return faults


def test_no_module_is_hidden_by_a_function_of_its_name():
    assert hidden_modules(PACKAGE) == []


def test_a_hidden_module_is_found(tmp_path):
    package = tmp_path / "pack"
    (package / "room").mkdir(parents=True)
    (package / "train.py").touch()
    (package / "room" / "__init__.py").touch()
    for said, faults in {
        "from pack.train import run\n": [],
        "from pack import train\n": [],
        "from pack.train import train\n": ["pack.train"],
        "from pack.train import run as room\n": ["pack.room"],
        "def train(): ...\n": ["pack.train"],
    }.items():
        (package / "__init__.py").write_text(said)
        assert hidden_modules(package) == faults


def imports(package):
    """Return for each module of the package the modules of it that its own lines import."""
    names = {}
    for path in package.rglob("*.py"):
        parts = (package.name, *path.relative_to(package).with_suffix("").parts)
        names[".".join(parts).removesuffix(".__init__")] = path
    found = {}
    for name, path in names.items():
        found[name] = set()
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.Import):
                found[name] |= {alias.name for alias in node.names} & names.keys()
            elif isinstance(node, ast.ImportFrom) and node.module in names:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                found[name] |= inner & names.keys() or {node.module}
        found[name].discard(name)
    return found


def test_imports_run_in_no_circle():
    order = list(graphlib.TopologicalSorter(imports(PACKAGE)).static_order())
    assert len(order) > 40


def test_a_circle_is_found(tmp_path):
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "a.py").write_text("from pack import b\n")
    (package / "b.py").write_text("from pack.a import x\n")
    with pytest.raises(graphlib.CycleError):
        list(graphlib.TopologicalSorter(imports(package)).static_order())


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


def refusing(requires, pythons):
    """Return the packages, of name → the Pythons each wants, that do not run on all of these."""
    return [
        f"{name} wants Python {wanted}"
        for name, wanted in requires.items()
        if wanted and not all(SpecifierSet(wanted).contains(f"{python}.0") for python in pythons)
    ]


def test_every_pin_runs_on_every_python():
    """Debian 12 has Python 3.11.2: a pin that wants 3.11.5 stops its readers."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    pythons = re.findall(r"Python :: (3\.\d+)$", "\n".join(project["classifiers"]), flags=re.M)
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = {line.split("==")[0].lower().replace("_", "-"): line.split("==")[-1] for line in lines}
    found = {}
    for each in distributions():
        name = each.metadata["Name"].lower().replace("_", "-")
        if pins.get(name) == each.version:
            found[name] = each.metadata.get("Requires-Python")
    assert len(found) > 20
    assert refusing(found, pythons) == []


def test_a_pin_that_refuses_a_python_is_found():
    wants = {"a": ">=3.11.5", "b": ">=3.8", "c": None, "d": ">=3.8,<3.14"}
    assert refusing(wants, ["3.11", "3.14"]) == [
        "a wants Python >=3.11.5",
        "d wants Python >=3.8,<3.14",
    ]


def test_nothing_built_is_committed():
    built = re.compile(r"(^|/)(_build|node_modules|\.venv|__pycache__|vendor)/|\.(woff2?|pyc)$")
    assert [p for p in tracked() if built.search(p.relative_to(ROOT).as_posix())] == []


def test_no_file_is_large():
    large = {p.name: p.stat().st_size for p in tracked() if p.is_file()}
    assert {name: size for name, size in large.items() if size >= 1_000_000} == {}


def test_there_is_no_class_around_the_plus_sign():
    assert not (PACKAGE / "residual.py").exists()
