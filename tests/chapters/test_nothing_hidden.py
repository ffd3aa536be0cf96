"""Whatever a chapter takes from the experiments can be read on its page."""

import ast
import re

import pytest

from book.tools.execute import CHAPTERS, read
from transformer_block.experiments.recorded import studies

EXPERIMENTS = "transformer_block.experiments"
SHOWS = ("show_source", "show_study")
NAMES = sorted(path.stem for path in CHAPTERS.glob("*.md"))


def code_of(cells):
    """Return the syntax of all code cells, without IPython's own lines."""
    return ast.parse(re.sub(r"^(\s*)%.*$", r"\1pass", "\n".join(cells), flags=re.MULTILINE))


def hidden(cells):
    """Return the functions, classes and studies that the cells use and show nowhere."""
    tree = code_of(cells)
    modules, helpers = set(), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(EXPERIMENTS):
            for alias in node.names:
                if node.module == EXPERIMENTS:
                    modules.add(alias.asname or alias.name)
                else:
                    helpers[alias.asname or alias.name] = alias.name
    used, shown = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            said = {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
            if node.func.id == "study":
                used |= {f"study {name}" for name in said & set(studies())}
            if node.func.id in SHOWS:
                shown |= {f"study {name}" for name in said}
                for arg in node.args:
                    shown |= set(_names(arg, modules, helpers))
        used |= set(_names(node, modules, helpers))
    return used - shown - {name for name in used if name.isupper()}  # constants are no code


def _names(node, modules, helpers):
    """Yield the helper that an expression names; of a method, its class."""
    steps = []
    while isinstance(node, ast.Attribute):
        steps.insert(0, node.attr)
        node = node.value
    if isinstance(node, ast.Name) and node.id in helpers:
        yield helpers[node.id]
    elif isinstance(node, ast.Name) and node.id in modules and steps:
        yield steps[0]


@pytest.mark.parametrize("name", NAMES)
def test_every_helper_and_study_of_a_chapter_is_shown(name):
    notebook = read(CHAPTERS / f"{name}.md")
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert not hidden(cells), "show them folded: show_source(…, fold=…) or show_study(…)"


IMPORTS = f"from {EXPERIMENTS}.ffn import cover, store as keep\nfrom {EXPERIMENTS} import residual"


@pytest.mark.parametrize(
    ("cell", "found"),
    [
        ("cover(30, 7)", {"cover"}),
        ("cover(30, 7)\nshow_source(cover, fold='Count')", set()),
        ("keep(1)\nshow_source(cover)", {"store"}),
        ("residual.joined('add', 1, 2, 1), residual.WAYS", {"joined"}),
        ("residual.ResidualNet(3)\nshow_source(residual.ResidualNet.forward)", set()),
        ("study('facts_stored')", {"study facts_stored"}),
        ("study('facts_stored')\nshow_study('facts_stored', cover)", set()),
        ("%pip install x\nlen([])", set()),
    ],
)
def test_what_a_planted_chapter_hides_is_found(cell, found):
    assert hidden([IMPORTS, cell]) == found
