"""Every exercise of every written chapter: its stub, its folded answer, its named mistakes."""

import re
from dataclasses import dataclass, field

import pytest
import yaml

from book.tools.execute import CHAPTERS, ROOT, read
from transformer_block.notebook import check

CLAIMS = yaml.safe_load((ROOT / "book" / "claims.yml").read_text("utf-8"))
WRITTEN = [
    name
    for name, chapter in CLAIMS["chapters"].items()
    if chapter["written"] and "headings" not in chapter  # those have a form of their own
]


@dataclass
class Exercise:
    """Cells under one heading "### N. …", run after the chapter's imports alone."""

    imports: list[str] = field(default_factory=list)
    cells: list[str] = field(default_factory=list)  # the first holds the stub
    answer: str = ""  # the code folded under "An answer"

    @property
    def name(self):
        return re.search(r"def (my_\w+)\(", self.cells[0])[1]

    def said(self, capsys, code=""):
        """Return what check prints when the stub's cell is followed by this code."""
        world = self._world()
        exec(self.cells[0] + "\n" + code, world)
        capsys.readouterr()
        for cell in self.cells[1:]:
            exec(cell, world)
        return capsys.readouterr().out

    def checked(self):
        """Return the arguments that the chapter gives to check."""
        given = {}

        def listen(mine, reference, cases, mistakes):
            given.update(reference=reference, cases=cases, mistakes=mistakes)

        world = self._world() | {"check": listen}
        for cell in self.cells:
            exec(cell, world)
        return given

    def _world(self):
        world = {"__name__": "exercise"}
        for cell in self.imports:
            exec(cell, world)
        return world


def exercises(chapter):
    """Return a chapter's exercises, in order."""
    found, imports, at = [], [], ""
    for cell in read(CHAPTERS / f"{chapter}.md").cells:
        if cell.cell_type == "code":
            if not at and "import " in cell.source and "find_spec" not in cell.source:
                imports.append(cell.source)
            elif numbered(at):
                found[-1].cells.append(cell.source)
            continue
        for part in re.split(r"^(?=#{2,3} )", cell.source, flags=re.M):
            if heading := re.match(r"#{2,3} (.*)", part):
                at = heading[1]
                if numbered(at):
                    found.append(Exercise(imports))
            if numbered(at) and (code := re.search(r"```python\n(.*?)```", part, re.S)):
                found[-1].answer = code[1]
    return found


def numbered(heading):
    return re.match(r"\d+\. ", heading)


EVERY = [
    pytest.param(exercise, id=f"{chapter}-{number}")
    for chapter in WRITTEN
    for number, exercise in enumerate(exercises(chapter), 1)
]


@pytest.mark.parametrize("chapter", WRITTEN)
def test_a_chapter_has_two_or_three(chapter):
    assert len(exercises(chapter)) in (2, 3)


@pytest.mark.parametrize("exercise", EVERY)
def test_an_untouched_stub_lets_the_notebook_run_on(exercise, capsys):
    assert "nothing yet" in exercise.said(capsys)


@pytest.mark.parametrize("exercise", EVERY)
def test_the_folded_answer_is_right(exercise, capsys):
    code = exercise.answer
    assert exercise.said(capsys, code).startswith("✓ Right")


@pytest.mark.parametrize("exercise", EVERY)
def test_four_mistakes_or_more_are_told_by_name(exercise, capsys):
    given = exercise.checked()
    assert len(given["mistakes"]) >= 4
    capsys.readouterr()
    for said, wrong in given["mistakes"].items():
        check(wrong, **given)
        assert said in capsys.readouterr().out


@pytest.mark.parametrize("exercise", EVERY)
def test_any_other_answer_is_not_let_through(exercise, capsys):
    given = exercise.checked()
    capsys.readouterr()
    for wrong in (lambda *_: 41.5, lambda *_: 1 / 0, lambda *_: "text"):
        check(wrong, **given)
        assert capsys.readouterr().out.startswith("✗")
