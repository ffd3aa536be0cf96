import ast
import inspect
import math

import pytest

from transformer_block import AttentionHead, LayerNorm, causal_mask
from transformer_block.notebook import show_source


def code(source):
    fenced = source._repr_markdown_()
    assert fenced.startswith("```python\n")
    assert fenced.endswith("\n```")
    return fenced[len("```python\n") : -len("\n```")]


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
