import json
import shutil

import pytest

from transformer_block.notebook import recorded
from transformer_block.notebook.recorded import study

NAMES = recorded.names()


@pytest.mark.parametrize("name", NAMES)
def test_the_rows_were_made_by_this_code(name):
    assert not recorded.is_stale(name), f"run: python -m book.tools.studies {name}"


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_and_seed_has_its_row(name):
    wanted = [{**setting, "seed": seed} for seed, setting in recorded.settings(name)]
    assert [{key: row[key] for key in want} for row, want in zip(study(name), wanted, strict=True)]
    assert len({row["seed"] for row in study(name)}) >= 3


@pytest.mark.parametrize("name", NAMES)
def test_the_first_row_comes_out_again(name):
    seed, setting = recorded.settings(name)[0]
    again, row = recorded.run_row(name, seed, setting), study(name)[0]
    assert recorded.agree(again, row), f"{again}\n{row}"


def planted(tmp_path, *edit):
    """A copy of the package in which one file was edited."""
    source = tmp_path / "src"
    if not source.exists():
        keep = shutil.ignore_patterns("__pycache__")
        shutil.copytree(
            recorded.SOURCE / "transformer_block", source / "transformer_block", ignore=keep
        )
    if edit:
        file, old, new = edit
        path = source / "transformer_block" / file
        text = path.read_text("utf-8")
        assert text.count(old) >= 1
        path.write_text(text.replace(old, new, 1), "utf-8")
    return source


STUDY = "notebook/studies/fresh.py"


@pytest.fixture
def package(tmp_path):
    source = planted(tmp_path)
    (source / "transformer_block" / STUDY).write_text(
        '"""Try."""\n\nfrom transformer_block.block import PreNormBlock\n\nSEEDS = [1]  # one\n'
    )
    return source


def test_the_digest_follows_imports_and_leaves_out_what_decides_nothing(package, tmp_path):
    before = recorded.digest("fresh", package)
    planted(tmp_path, "multi_head.py", '"""Several heads', '"""Many heads')
    planted(tmp_path, "attention.py", "\nclass AttentionHead", "\n\n# read\nclass AttentionHead")
    planted(tmp_path, "generate.py", "import torch", "import torch as torch")
    assert recorded.digest("fresh", package) == before


@pytest.mark.parametrize(
    "edit",
    [
        ("norm.py", "eps: float = 1e-5", "eps: float = 1e-6"),  # imported by what is imported
        ("_checks.py", "size < 1", "size < 2"),  # imported as a name of the package
        (STUDY, "SEEDS = [1]", "SEEDS = [2]"),
    ],
)
def test_a_change_that_could_matter_makes_rows_stale(edit, package, tmp_path):
    before = recorded.digest("fresh", package)
    planted(tmp_path, *edit)
    assert recorded.digest("fresh", package) != before


def test_rows_differ_where_a_number_or_a_name_does():
    row = {"seed": 31, "kind": "pre", "loss": [1.0, 2.0], "many": 3}
    assert recorded.agree(row, {**row, "loss": [1.01, 1.99]})
    for wrong in ({"loss": [1.0, 2.2]}, {"loss": [1.0]}, {"kind": "post"}, {"many": 4}, {"x": 1}):
        assert not recorded.agree({**row, **wrong}, row)


def test_a_study_is_recorded_read_and_filtered(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded, "_file_of", lambda name: tmp_path / f"{name}.json")
    name = NAMES[0]
    assert recorded.is_stale(name)
    with pytest.raises(ValueError, match=f"no rows yet; run python -m book.tools.studies {name}"):
        study(name)
    rows = [{"depth": 2, "seed": 31, "x": 0.5}, {"depth": 3, "seed": 31, "x": 1}]
    recorded.record(name, rows, recorded.digest(name))
    assert not recorded.is_stale(name)
    assert study(name, depth=3) == [{"depth": 3, "seed": 31, "x": 1}]
    with pytest.raises(ValueError, match=r"told apart by \['depth', 'seed', 'x'\]"):
        study(name, depth=4)
    file = tmp_path / f"{name}.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"made_from": "other"}))
    assert recorded.is_stale(name)


def test_an_unknown_study_is_refused_by_name():
    with pytest.raises(ValueError, match=f"no study 'deep'; there are .*{NAMES[0]}"):
        study("deep")
