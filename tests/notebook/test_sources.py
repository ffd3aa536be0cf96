import ast
import inspect
import math
import re
from html.parser import HTMLParser

import pytest
from markdown_it import MarkdownIt

from transformer_block import AttentionHead, LayerNorm, causal_mask
from transformer_block.experiments import recorded
from transformer_block.experiments.recorded import study_named
from transformer_block.notebook import show_source, show_study


def code(source):
    fenced = source._repr_markdown_()
    assert fenced.startswith("```python\n")
    assert fenced.endswith("\n```")
    return fenced[len("```python\n") : -len("\n```")]


class Folded(HTMLParser):
    """Read a page of one fold: its label, and the text in it."""

    def __init__(self, source):
        super().__init__()
        self.label, self.inside, self.outside, self._open = "", "", "", []
        self.tags = []
        self.feed(MarkdownIt("commonmark").render(source._repr_markdown_()))

    def handle_starttag(self, tag, attrs):
        self._open.append(tag)
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag, "what a fold opens it closes"

    def handle_data(self, data):
        if "summary" in self._open:
            self.label += data
        elif "details" in self._open:
            self.inside += data
        else:
            self.outside += data


def test_it_shows_the_code_as_it_stands():
    assert code(show_source(LayerNorm)) == inspect.getsource(LayerNorm).rstrip()


def test_several_stand_beneath_each_other_and_methods_start_at_the_left():
    shown = show_source(causal_mask, LayerNorm.forward)
    assert "\n\n\ndef forward(" in "\n" + code(shown)
    assert repr(shown) == "source of causal_mask, LayerNorm.forward"


def test_without_docstrings_the_code_is_the_same():
    short = code(show_source(AttentionHead, docstring=False))

    def bare(source):
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node):
                node.body = node.body[1:] or [ast.Pass()]
        return ast.dump(tree)

    assert bare(short) == bare(inspect.getsource(AttentionHead))
    assert "Raises:" not in short
    assert '"""' in short, "the first lines stay"


@pytest.mark.parametrize("thing", [math.sqrt, 3, int])
def test_what_has_no_python_source_is_refused(thing, as_a_reader):
    with pytest.raises(ValueError, match="no Python source"):
        show_source(thing)


def test_a_fold_holds_the_highlighted_code_under_its_label():
    read = Folded(show_source(LayerNorm, causal_mask, fold="Two <helpers> & more"))
    assert read.label == "Two <helpers> & more"
    assert ("code", {"class": "language-python"}) in read.tags
    assert read.inside.strip() == code(show_source(LayerNorm, causal_mask))
    assert not read.outside.strip()
    assert [tag for tag, _ in read.tags].count("details") == 1


def fenced():
    """Show code as Markdown does.

    ```python
    </details>
    ```
    """


def test_code_with_fences_and_tags_stays_in_its_fold():
    read = Folded(show_source(fenced, fold="Fenced"))
    assert read.inside.strip() == inspect.getsource(fenced).strip()


def test_a_study_can_be_shown_as_a_function():
    shown = code(show_source(study_named("facts_stored")))
    assert shown.startswith("@recorded(")
    assert "def facts_stored(seed: int" in shown


@recorded.recorded(settings=[{"kind": "a, b", "n": 2}, {"kind": "c", "n": 3}], seeds=[5, 7, 11])
def planted(seed, kind, n):
    """Return a number.

    And say no more in front.
    """
    return {"number": helper(seed) * n}


def helper(seed):
    return seed + 1


@pytest.fixture
def a_study(monkeypatch, tmp_path):
    monkeypatch.setattr(recorded.Study, "file", tmp_path / "rows.json")
    monkeypatch.setattr(recorded, "studies", lambda: {"planted": planted})


def test_a_study_says_what_it_measures_and_how_it_was_made(a_study, monkeypatch):
    planted.store([{"kind": "c", "n": 3, "seed": 5, "number": 18}], "x")
    with_torch = f"Recorded with torch {planted.stored()['torch']}"
    read = Folded(show_study("planted", helper))
    assert read.label == "The recorded study: planted, 6 runs"
    words, _, shown = read.inside.strip().partition("@recorded.")
    assert words.split("\n") == [
        "Return a number.",
        f"2 settings: kind = 'a, b', 'c'; n = 2, 3. Seeds of each: 5, 7, 11. {with_torch}.",
        "",
    ]
    assert "def planted(seed, kind, n):" in shown
    monkeypatch.setattr(planted, "settings", planted.settings[:1])
    assert "1 setting: kind = 'a, b'; n = 2. " in Folded(show_study("planted")).inside
    assert shown.endswith(inspect.getsource(helper).strip())


def test_a_study_without_rows_says_so_and_an_unknown_one_is_refused(a_study):
    assert re.search(r"torch \(not yet recorded\)", show_study("planted")._repr_markdown_())
    assert repr(show_study("planted")) == "how the study planted was made"
    with pytest.raises(ValueError, match="no study 'x'; there are planted"):
        show_study("x")
