"""`make mutants`: what it plants, what it runs, and what it says of the survivors."""

import ast
import subprocess
import sys

import pytest

from book.tools import mutants as tool

TINY = '''"""A module."""

LIMIT = 3  # ä, a letter of two bytes


def f(a, b=True):
    """Say what + and < are: no mistake is planted here."""
    name = f"{a + 1}"
    return (a + LIMIT) if a < 2.5 and not b else name
'''


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    (tmp_path / "tiny.py").write_text(TINY, "utf-8")
    monkeypatch.setattr(tool, "PACKAGE", tmp_path)
    return list(tool.mistakes("tiny"))


def test_each_mistake_turns_one_thing_round(tiny):
    assert {(mutant.before, mutant.after) for mutant in tiny} == {
        ("3", "4"),
        ("True", "False"),
        ("a + LIMIT", "a - LIMIT"),
        ("a < 2.5 and (not b)", "a < 2.5 or not b"),
        ("a < 2.5", "a <= 2.5"),
        ("2.5", "3.5"),
        ("not b", "b"),
    }
    for mutant in tiny:
        pairs = zip(TINY.splitlines(), mutant.source.splitlines(), strict=True)
        changed = [number for number, (old, new) in enumerate(pairs, 1) if old != new]
        assert changed == [mutant.line]
        before, after = (ast.dump(ast.parse(text)) for text in (TINY, mutant.source))
        assert before != after
        assert mutant.source.count("ä, a letter of two bytes") == 1


def test_a_mistake_that_changes_nothing_is_listed_with_its_reason(tiny, monkeypatch):
    listed = {("tiny", "LIMIT = "): "any will do", ("other", "a < 2.5"): "no"}
    monkeypatch.setattr(tool, "EQUIVALENT", listed)
    told = {mutant.before: mutant.reason for mutant in tiny}
    assert told.pop("3") == "any will do"  # by its line: the mistake itself is a bare 3
    assert set(told.values()) == {None}


def test_what_is_listed_is_there():
    tests = tool.ROOT / "tests" / "package"
    for module, names in tool.TESTS.items():
        assert tool.file_of(module).is_file()
        assert [name for name in names if not (tests / f"test_{name}.py").is_file()] == []
    for (module, part), why in tool.EQUIVALENT.items():
        lines = tool.file_of(module).read_text("utf-8").splitlines()
        touched = {lines[mutant.line - 1] for mutant in tool.mistakes(module)}
        assert any(part in line for line in touched), (module, part)
        assert why


@pytest.mark.parametrize(
    ("alive", "listed", "code", "said"),
    [
        (set(), {}, 0, "7 caught, 0 survived, 0 change nothing; 100.0% caught"),
        ({"3", "2.5"}, {}, 1, "5 caught, 2 survived, 0 change nothing; 71.4% caught"),
        ({"3"}, {("tiny", "LIMIT ="): "taste"}, 0, "6 caught, 0 survived, 1 change nothing; 100"),
    ],
    ids=["all caught", "two alive", "one listed"],
)
def test_the_survivors_are_named_and_counted(alive, listed, code, said, tiny, monkeypatch, capsys):
    monkeypatch.setattr(tool, "TESTS", {"tiny": ()})
    monkeypatch.setattr(tool, "EQUIVALENT", listed)
    monkeypatch.setattr(tool, "survives", lambda m: m.source == TINY or m.before in alive)
    monkeypatch.setattr(tool.os, "environ", {})
    assert tool.main(["--only", "tiny", "--jobs", "1"]) == code
    out = capsys.readouterr().out
    assert said in out
    assert all(f"- {before}\n" in out for before in alive)
    assert "(taste)" in out or not listed


def test_tests_that_fail_without_a_mistake_are_refused(tiny, monkeypatch, capsys):
    monkeypatch.setattr(tool, "TESTS", {"tiny": ()})
    monkeypatch.setattr(tool, "survives", lambda mutant: False)
    monkeypatch.setattr(tool.os, "environ", {})
    assert tool.main(["--only", "tiny"]) == 1
    assert "the tests of tiny fail as they are" in capsys.readouterr().err


def test_real_mistakes_are_planted_and_caught():
    asked = ["--only", "norm", "--count", "4", "--jobs", "2", "--seed", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "book.tools.mutants", *asked],
        cwd=tool.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 caught" in done.stdout.splitlines()[-1]
