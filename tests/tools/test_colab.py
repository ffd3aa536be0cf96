import ast
import json
import re

import nbformat
import pytest

from book.tools import colab, common

REPOSITORY, COMMIT = "https://github.com/someone/a-book", "0123abcd" * 5


@pytest.fixture
def made(tmp_path):
    """The notebooks as they are published, by name."""
    written = colab.write(tmp_path, REPOSITORY, COMMIT, common.ROOT / "chapters")
    return {path.stem: json.loads(path.read_text("utf-8")) for path in written}


def text(cell):
    return "".join(cell["source"])


def test_every_chapter_is_made_and_begins_with_the_published_commit(made):
    assert set(made) == {path.stem for path in (common.ROOT / "chapters").glob("*.ipynb")}
    for notebook in made.values():
        first = text(notebook["cells"][0])
        values = {
            node.targets[0].id: ast.literal_eval(node.value)
            for node in ast.parse(first).body
            if isinstance(node, ast.Assign) and node.targets[0].id in ("REPOSITORY", "COMMIT")
        }
        assert values == {"REPOSITORY": REPOSITORY, "COMMIT": COMMIT}
        assert "input(" not in first
        nbformat.validate(nbformat.from_dict(notebook))


def test_the_stored_chapters_have_no_such_cell():
    for path in (common.ROOT / "chapters").glob("*.md"):
        assert not re.search(r"pip install|input\(", path.read_text("utf-8")), path.name


def test_what_chapters_need_is_what_pyproject_says():
    needs = list(colab.needs())
    assert {"torch", "ipywidgets", "matplotlib", "tokenizers", "huggingface-hub"} <= set(needs)
    assert not {"pytest", "jupyter-book"} & set(needs)


def test_links_lead_out_of_colab_and_no_widget_of_another_version_is_shown(made):
    for name, notebook in made.items():
        assert "widgets" not in notebook["metadata"]
        for cell in notebook["cells"]:
            if cell["cell_type"] == "markdown":
                assert not re.search(r"\]\((?!https:|#|data:)[\w./-]+\)", text(cell)), name
            for out in cell.get("outputs", ()):
                assert colab.VIEW not in out.get("data", {})


def test_without_a_repository_it_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["colab", str(tmp_path), "--repository", "", "--commit", ""])
    with pytest.raises(common.Problem, match=r"(?s)names none.*git remote add origin"):
        colab.main()


def test_without_stored_chapters_it_says_so(tmp_path):
    with pytest.raises(common.Problem, match="holds no executed chapter"):
        colab.write(tmp_path / "out", REPOSITORY, COMMIT, tmp_path)
