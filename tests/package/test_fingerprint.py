"""One rule of staleness: what counts, what does not, and what follows from a change."""

import functools
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from book.tools.execute import CHAPTERS, code_of, read
from transformer_block import fingerprint as module_of
from transformer_block.experiments.recorded import studies
from transformer_block.fingerprint import SOURCE, fingerprint

PACKAGE = SOURCE / "transformer_block"
JOB = "transformer_block.training.jobs.Job"
pytestmark = pytest.mark.usefixtures("as_a_reader")  # no tensors here: nothing for it to check


# A small package of the same name, in which one thing is changed at a time


SMALL = {
    "__init__.py": "from transformer_block.shapes import area\n",
    "shapes.py": (
        '"""Shapes."""\n'
        "import math as m\n"
        "from transformer_block import units\n"
        "ROUND = 2  # digits\n"
        "def area(r: float) -> float:\n"
        '    """Return the area."""\n'
        "    return round(units.METRE * m.pi * r**2, ROUND)\n"
        "class Square:\n"
        '    """Has four sides."""\n'
        "    def area(self) -> float:\n"
        "        from transformer_block.late import factor\n"
        "        return factor() * self.side**2\n"
        "    def sides(self) -> int:\n"
        "        return 4\n"
        "def lonely() -> int:\n"
        "    return 1\n"
    ),
    "units.py": "METRE = 1.0\nFOOT = 0.3\n",
    "late.py": "def factor() -> int:\n    return 1\n",
    "tables.py": (
        "TABLE = {}\n"
        "for name in ('a', 'b'):\n"
        "    TABLE[name] = len(name)\n"
        "def look() -> int:\n"
        "    return TABLE['a']\n"
        "def other() -> int:\n"
        "    return 3\n"
    ),
    "room/__init__.py": "from .inside import drawing\n",
    "room/inside.py": "def drawing() -> str:\n    return read('drawing.svg')\n",
    "room/drawing.svg": "<svg/>",
}


@pytest.fixture
def write(tmp_path_factory):
    """Return a function that writes the small package anew, with these files changed."""

    def written(changes):
        source = tmp_path_factory.mktemp("src")
        for name, text in {**SMALL, **changes}.items():
            file = source / "transformer_block" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, "utf-8")
        return source

    return written


USES = {
    "definition": ("from transformer_block.shapes import area\narea(1)", "shapes.py units.py"),
    "re-export": ("from transformer_block import area\narea(1)", "shapes.py units.py"),
    "alias": ("import transformer_block.shapes as s\ns.area(1)", "shapes.py units.py"),
    "other alias": (
        "from transformer_block.shapes import area as a\na(1)",
        "shapes.py units.py",
    ),
    "full name": (
        "import transformer_block.shapes\ntransformer_block.shapes.area(1)",
        "shapes.py units.py",
    ),
    "method with an import in it": (
        "from transformer_block.shapes import Square\nSquare().area()",
        "late.py shapes.py",
    ),
    "whole module": (
        "import transformer_block.shapes as s\nvars(s)",
        "late.py shapes.py units.py",
    ),
    "file beside, relative import": (
        "from transformer_block.room import drawing\ndrawing()",
        "room/drawing.svg room/inside.py",
    ),
    "import in a function": (
        "def f():\n    from transformer_block.late import factor\n    return factor()\n",
        "late.py",
    ),
    "two imports of one name": (
        (
            "def f():\n    from transformer_block.late import factor as x\n    return x\n"
            "def g():\n    from transformer_block.units import METRE as x\n    return x\n"
        ),
        "late.py units.py",
    ),
    "filled by a loop": ("from transformer_block.tables import look\nlook()", "tables.py"),
    "nothing": ("import math\nmath.pi", ""),
}
# each changes something of its file that the uses above need
CHANGED = {
    "shapes.py": SMALL["shapes.py"]
    .replace("r**2, ROUND", "r**3, ROUND")
    .replace("= 4", "= 5")
    .replace("return 4", "return 5"),
    "units.py": SMALL["units.py"].replace("1.0", "1.5"),
    "late.py": SMALL["late.py"].replace("return 1", "return 2"),
    "tables.py": SMALL["tables.py"].replace("len(name)", "0"),
    "room/inside.py": SMALL["room/inside.py"].replace("read", "load"),
    "room/drawing.svg": "<svg></svg>",
}


@pytest.mark.parametrize("use", USES)
def test_each_way_to_use_something_is_followed(use, write):
    code, needs = USES[use]
    before = fingerprint(code=code, source=write({}))
    after = {
        file: fingerprint(code=code, source=write({file: text})) for file, text in CHANGED.items()
    }
    assert {file for file in after if after[file] != before} == set(needs.split())


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("shapes.py", "return 1\n", "return 2\n"),  # of another definition
        ("units.py", "FOOT = 0.3", "FOOT = 0.4"),
        ("shapes.py", "  # digits", "  # after the point"),
        ("shapes.py", "Return the area.", "Give the area."),
        ("shapes.py", '"""Shapes."""\n', ""),
        ("shapes.py", "r**2, ROUND)", "(r ** 2),\n        ROUND,\n    )"),
        ("shapes.py", "import math as m\n", "import cmath\nimport math as m\n"),
    ],
)
def test_what_decides_nothing_changes_nothing(file, old, new, write):
    code = "from transformer_block import area\narea(1)"
    assert SMALL[file].count(old) == 1
    after = write({file: SMALL[file].replace(old, new)})
    assert fingerprint(code=code, source=after) == fingerprint(code=code, source=write({}))


def test_what_a_module_does_besides_defining_counts_for_all_of_it(write):
    code = "from transformer_block.tables import other\nother()"
    before = fingerprint(code=code, source=write({}))
    for more in ("TABLE.clear()\n", "TABLE['c'] = 1\n", "if TABLE:\n    other = None\n"):
        after = write({"tables.py": SMALL["tables.py"] + more})
        assert fingerprint(code=code, source=after) != before


def test_a_new_module_is_covered_without_being_listed(write):
    source = write({"units.py": "from transformer_block.new import METRE\n", "new.py": "METRE = 1"})
    other = write({"units.py": "from transformer_block.new import METRE\n", "new.py": "METRE = 2"})
    before, after = (
        fingerprint("transformer_block.shapes.area", source=s) for s in (source, other)
    )
    assert before != after


def test_names_that_do_not_exist_and_stars_are_refused(write):
    source = write({})
    with pytest.raises(ValueError, match=r"transformer_block.shapes defines no 'volume'"):
        fingerprint("transformer_block.shapes.volume", source=source)
    with pytest.raises(ValueError, match="by name"):
        fingerprint(code="from transformer_block.shapes import *", source=source)


# The package itself: what a change makes stale, of the chapters, the studies and the weights


SOME = ["00", "01", "02", "03", "04", "05", "06", "09"]  # chapters
TRAIN = {"batch_norm", "learned_or_identity", "norm_place"}  # studies of models of the toy language
STUDIES = {
    name: f"{studies()[name].function.__module__}.{name}"
    for name in (*TRAIN, "d_ff_buys", "facts_stored", "whole_or_parts")
}


CODE = {
    path.stem[:2]: code_of(read(path)) for path in CHAPTERS.glob("*.md") if path.stem[:2] in SOME
}


def every_fingerprint(source):
    found = {number: fingerprint(code=code, source=source) for number, code in CODE.items()}
    found |= {name: fingerprint(full, source=source) for name, full in STUDIES.items()}
    return found | {"weights": fingerprint(JOB, source=source)}


now = functools.cache(lambda: every_fingerprint(SOURCE))


def stale_after(tmp_path, *changes):
    """Plant changes in a copy of the package and return what they make stale."""
    copy = tmp_path / "transformer_block"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for file, old, new in changes:
        text = (copy / file).read_text("utf-8")
        assert re.search(old, text), f"{file} holds no {old}"
        (copy / file).write_text(re.sub(old, new, text, count=1), "utf-8")
    then = every_fingerprint(tmp_path)
    return {what for what in then if then[what] != now()[what]}


@pytest.mark.parametrize(
    ("file", "old", "new", "stale"),
    [
        ("language/grammar.py", '"frog"', '"toad"', {*SOME, *TRAIN, "weights"} - {"01"}),
        ("norm.py", "(?s)(RMSNorm.*?)1e-5", r"\g<1>1e-6", {*SOME, *TRAIN, "weights"} - {"01"}),
        ("figures/picture.py", "#0072b2", "#0072b3", {*SOME}),
        ("figures/block.svg", "<svg", "<svg ", {*SOME}),
        ("training/store.py", "weights of %s", "weights for %s", {"00", "02", "09"}),
        ("experiments/ffn.py", "seeds=.*", "seeds=[1, 2, 3],", {"d_ff_buys"}),
    ],
    ids=["grammar", "norm", "colour", "drawing", "store", "seeds"],
)
def test_a_change_makes_stale_what_depends_on_it_and_nothing_else(file, old, new, stale, tmp_path):
    assert stale_after(tmp_path, (file, old, new)) == stale


def test_words_make_nothing_stale(tmp_path):
    words = [
        ("norm.py", '"""Scale each token', '"""Bring each token'),
        ("language/grammar.py", "# The grammar.", "# A grammar."),
        ("training/loop.py", "import math\n", "import math\n\n\n"),
        ("figures/picture.py", "def dot", "# a point\ndef dot"),
    ]
    assert stale_after(tmp_path, *words) == set()


# Every version of Python says the same


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_the_digest_is_the_same_in_every_python(version):
    if not (python := other_python(version)):
        pytest.skip(f"THERE IS NO PYTHON {version} HERE: its fingerprint was not compared")
    code = (
        "import runpy, sys\n"
        "fingerprint = runpy.run_path(sys.argv[1])['fingerprint']\n"
        "print(*[fingerprint(name) for name in sys.argv[2:]])"
    )
    names = [JOB, "transformer_block.notebook", *STUDIES.values()]
    done = subprocess.run(
        [python, "-I", "-c", code, module_of.__file__, *names], capture_output=True, text=True
    )
    assert done.stdout.split() == [fingerprint(name) for name in names], done.stderr


def other_python(version):
    """Return a Python of this version that starts, or None."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    kept = Path.home().glob(f".pyenv/versions/{version}.*/bin/python")
    for python in filter(None, [shutil.which(f"python{version}"), *map(str, kept)]):
        asked = [python, "-I", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        if subprocess.run(asked, capture_output=True, text=True).stdout.strip() == version:
            return python
    return None
