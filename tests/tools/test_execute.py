"""`make run`: the same bytes twice, and a failure that says where."""

import json
from types import SimpleNamespace

import nbformat
import pytest

from book.tools import execute as tool

HEAD = "---\nkernelspec:\n  display_name: Python 3\n  name: python3\n---\n\n# 50 Trial\n\n"


def chapter(folder, *cells, name="50-trial"):
    """Write a chapter of these code cells; a pair is (tag, source)."""
    parts = [HEAD]
    for cell in cells:
        tag, source = cell if isinstance(cell, tuple) else ("", cell)
        tags = f":tags: [{tag}]\n\n" if tag else ""
        parts.append(f"```{{code-cell}} ipython3\n{tags}{source}\n```\n\n")
    (folder / f"{name}.md").write_text("".join(parts), encoding="utf-8")
    return folder / f"{name}.ipynb"


def run(folder, *names):
    return tool.main([*names, "--chapters", str(folder)])


def test_twice_gives_the_same_bytes(tmp_path, capfd):
    path = chapter(
        tmp_path,
        "import ipywidgets\nfrom transformer_block import figures\n"
        "from transformer_block.notebook import explore",
        "explore(lambda n: figures.bars(['a'], [float(n)], alt='one bar'), n=[1, 2])",
        "import time\nwith figures.live_curve(alt='falls', every=0.0) as curve:\n"
        "    for i in range(5):\n        curve.add(i, loss=5.0 - i)",
        ("raises-exception", "figures.block('none')"),
        "print('done')",
    )
    assert run(tmp_path) == 0
    first = path.read_bytes()
    assert run(tmp_path, "50") == 0
    assert path.read_bytes() == first
    out, err = capfd.readouterr()
    assert err == ""
    assert [line.split(" s, ")[1] for line in out.splitlines()] == ["stored", "unchanged"]

    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    _, drawn, live, failed, said = [cell for cell in notebook.cells if cell.cell_type == "code"]
    states = notebook.metadata.widgets[tool.STATE]["state"]
    assert drawn.outputs[0].data["text/plain"] == "sliders over n = 1, 2"
    top = states[drawn.outputs[0].data[tool.VIEW]["model_id"]]
    assert all(child.removeprefix("IPY_MODEL_") in states for child in top["state"]["children"])
    assert [state["model_name"] for state in states.values()].count("LinkModel") == 1
    assert len(live.outputs) == 1, "one figure is left"
    assert failed.outputs[0].traceback == [f"ValueError: {failed.outputs[0].evalue}"]
    assert said.outputs[0].text == "done\n"
    assert all("execution" not in cell.metadata for cell in notebook.cells)
    assert not any(key in json.dumps(notebook.metadata) for key in ('version": "3', "iopub"))


def test_a_clock_keeps_its_time_until_the_code_changes(tmp_path):
    timed = "import time\nprint(time.perf_counter())"
    clock = ("nbval-ignore-output, clock", timed)
    path = chapter(tmp_path, "x = 1", clock)
    path.write_text("no notebook", encoding="utf-8")
    assert run(tmp_path) == 0
    first = path.read_bytes()
    assert run(tmp_path) == 0
    assert path.read_bytes() == first
    chapter(tmp_path, "x = 2", clock)
    assert run(tmp_path) == 0
    outputs = [nbformat.reads(kept, 4).cells[-1].outputs for kept in (first, path.read_bytes())]
    assert outputs[0] != outputs[1]

    chapter(tmp_path, "x = 2", ("nbval-ignore-output", timed))  # not called a clock
    assert run(tmp_path) == 0
    before = path.read_bytes()
    assert run(tmp_path) == 0
    assert path.read_bytes() != before


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("x = 1\n1 / 0", "ZeroDivisionError: division by zero"),
        ("import sys\nprint('careful', file=sys.stderr)", "wrote to stderr: careful"),
        ("import warnings\nwarnings.warn('old')", "wrote to stderr"),
        (("raises-exception", "1 + 1"), "raised nothing"),
    ],
    ids=["raises", "stderr", "warns", "should raise"],
)
def test_a_failing_cell_is_named_and_the_old_notebook_kept(cell, words, tmp_path, capsys):
    path = chapter(tmp_path, cell)
    path.write_text("the old one", encoding="utf-8")
    assert run(tmp_path) == 1
    out = capsys.readouterr().out
    source = cell if isinstance(cell, str) else cell[1]
    assert out.startswith("50-trial: this cell failed\n")
    assert words in out
    assert all(line in out for line in source.splitlines())
    assert path.read_text("utf-8") == "the old one"
    assert {p.name for p in tmp_path.iterdir()} == {"50-trial.md", "50-trial.ipynb"}


def test_an_unknown_chapter_is_named(tmp_path, capsys):
    chapter(tmp_path, "1")
    assert run(tmp_path, "99") == 2
    assert "no chapter '99'; there are: 50-trial" in capsys.readouterr().out


def test_a_new_cell_leaves_the_ids_of_the_others(tmp_path):
    chapter(tmp_path, "a = 1", "a = 1", "b = 2")
    before = [cell.id for cell in tool.read(tmp_path / "50-trial.md").cells]
    chapter(tmp_path, "a = 1", "a = 1", "new = 3", "b = 2")
    after = [cell.id for cell in tool.read(tmp_path / "50-trial.md").cells]
    assert len(set(after)) == len(after)
    assert set(before) < set(after)


def test_the_digest_sees_code_and_rows_but_not_prose(tmp_path, monkeypatch):
    def made_from(*cells, words="# 50 Trial"):
        chapter(tmp_path, *cells)
        text = tmp_path / "50-trial.md"
        text.write_text(text.read_text("utf-8").replace("# 50 Trial", words), "utf-8")
        return tool.made_from(tool.read(text))

    first = made_from("1 + 1", "2")
    assert made_from("1 + 1", "2", words="# 50 Another") == first
    assert made_from("1 + 1  # one", "(2)") == first
    assert made_from("1 + 1", "3")["code"] != first["code"]
    assert made_from("1 + 12", "")["code"] != made_from("1 + 1", "2")["code"]

    kept = {"made_from": "x", "torch": "2", "rows": [{"seed": 1}]}
    monkeypatch.setattr(tool, "studies", lambda: {"deep": SimpleNamespace(stored=lambda: kept)})
    cell = "from transformer_block.notebook import study\nstudy('deep')"
    before = made_from(cell)
    kept["made_from"] = "y"
    assert made_from(cell) == before, "the chapter shows rows, not which code made them"
    kept["rows"] = [{"seed": 2}]
    assert made_from(cell)["rows"] != before["rows"]
    assert made_from("1 + 1", "2") == first

    shown = (
        "from transformer_block import norm\nshow_source(norm.LayerNorm.forward, fold='The norm')"
    )
    before = made_from(shown)
    source = tool.inspect.getsource
    monkeypatch.setattr(tool.inspect, "getsource", lambda thing: source(thing) + "\n# said anew")
    assert made_from(shown)["shown"] != before["shown"], "what is printed has changed"
    assert made_from(shown)["code"] == before["code"]
    monkeypatch.setattr(tool.inspect, "getsource", lambda thing: str(thing.__qualname__))
    assert list(tool.shown_sources(shown)) == ["LayerNorm.forward"]


def test_a_cell_may_hold_magics(tmp_path):
    chapter(tmp_path, "if True:\n    %pip install x", "!ls", "1 + 1")
    assert tool.made_from(tool.read(tmp_path / "50-trial.md"))["code"]


def test_streams_are_stored_in_one_piece_whatever_the_load(tmp_path):
    path = chapter(
        tmp_path,
        "import sys, time\n"
        "for i in range(4):\n    print(i)\n    sys.stdout.flush()\n    time.sleep(0.3)",
    )
    assert tool.main(["--chapters", str(tmp_path), "50-trial"]) == 0
    (cell,) = (c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code")
    assert [out.text for out in cell.outputs] == ["0\n1\n2\n3\n"]


def test_a_reader_s_own_profile_changes_no_output(tmp_path, monkeypatch):
    profile = tmp_path / "ipython" / "profile_default"
    profile.mkdir(parents=True)
    (profile / "ipython_config.py").write_text(
        "c = get_config()\nc.InteractiveShell.ast_node_interactivity = 'all'\n", encoding="utf-8"
    )
    (tmp_path / "startup.py").write_text("print('hello')\nlen = None\n", encoding="utf-8")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYTHONSTARTUP", str(tmp_path / "startup.py"))
    path = chapter(tmp_path, "1\nlen('ab')")
    assert tool.main(["--chapters", str(tmp_path), "50-trial"]) == 0
    (cell,) = (c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code")
    assert [out.data["text/plain"] for out in cell.outputs] == ["2"]


def test_what_is_folded_on_the_page_is_folded_in_jupyterlab(tmp_path):
    chapter(tmp_path, ("hide-input", "1"), "2")
    _, folded, shown = tool.read(tmp_path / "50-trial.md").cells
    assert folded.metadata.jupyter.source_hidden
    assert "jupyter" not in shown.metadata


def test_what_verify_measured_is_stored_beside_the_digests(tmp_path):
    path = chapter(
        tmp_path, "from transformer_block.notebook import verify\nx = 0.7\nverify('so', x > 0.6)"
    )
    assert tool.main(["--chapters", str(tmp_path), "50-trial"]) == 0
    stored = nbformat.read(path, as_version=4).metadata[tool.MADE_FROM]
    assert stored["measured"] == {"so": ["0.7 > 0.6"]}
