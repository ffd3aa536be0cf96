import json
import sys

import pytest

from transformer_block.experiments import recorded
from transformer_block.experiments.recorded import Study, agree, studies, study, study_named
from transformer_block.fingerprint import fingerprint

every_study = pytest.mark.parametrize("name", studies())


@pytest.fixture
def untraced():
    """Switch coverage off, which would add a third to the trainings; experiments do not count.

    Its own mark, `no_cover`, does nothing in a worker of xdist.
    """
    tracer = sys.gettrace()
    sys.settrace(None)
    yield
    sys.settrace(tracer)


@every_study
def test_the_rows_were_made_by_this_code(name):
    assert not study_named(name).is_stale(), f"run: python -m book.tools.studies {name}"


@every_study
def test_every_setting_and_seed_has_its_row(name):
    wanted = [{**setting, "seed": seed} for seed, setting in study_named(name).wanted()]
    assert [{key: row[key] for key in want} for row, want in zip(study(name), wanted, strict=True)]
    assert len({row["seed"] for row in study(name)}) >= 3


@every_study
@pytest.mark.usefixtures("untraced")
def test_the_first_row_comes_out_again(name):
    again, row = study_named(name).measure(*study_named(name).wanted()[0]), study(name)[0]
    assert agree(again, row), f"{again}\n{row}"


@every_study
def test_a_study_is_what_its_module_says(name):
    marked = study_named(name)
    assert marked.name == name
    assert marked.__doc__
    assert marked.fingerprint == fingerprint(f"{marked.function.__module__}.{name}")
    assert marked.file.with_suffix(".py").is_file()


def test_rows_differ_where_a_number_or_a_name_does():
    row = {"seed": 31, "kind": "pre", "loss": [1.0, 2.0], "many": 3}
    assert agree(row, {**row, "loss": [1.01, 1.99]})
    for wrong in ({"loss": [1.0, 2.2]}, {"loss": [1.0]}, {"kind": "post"}, {"many": 4}, {"x": 1}):
        assert not agree({**row, **wrong}, row)


@pytest.fixture
def trial(tmp_path, monkeypatch):
    """A study of this test, beside another; its rows lie in a folder of its own."""
    monkeypatch.setattr(Study, "file", property(lambda _: tmp_path / "trial.json"))
    monkeypatch.setattr(Study, "fingerprint", property(lambda self: f"code of {self.name}"))

    def doubled(seed, *, n):
        """Double a number."""
        return {"twice": 2 * n + seed / 3}

    def other(seed, *, n):
        return {}

    made = {
        function.__name__: recorded.recorded(settings=[{"n": 2}, {"n": 3}], seeds=[1])(function)
        for function in (doubled, other)
    }
    monkeypatch.setattr(recorded, "studies", lambda: made)
    return made["doubled"]


def test_a_study_is_measured_recorded_read_and_filtered(trial):
    assert trial.is_stale()
    with pytest.raises(
        ValueError, match=r"no rows yet; run python -m book\.tools\.studies doubled"
    ):
        study("doubled")
    assert trial.wanted() == [(1, {"n": 2}), (1, {"n": 3})]
    rows = [trial.measure(*each) for each in trial.wanted()]
    assert rows[0] == {"n": 2, "seed": 1, "twice": 4.333}, "four digits"
    trial.store(rows, trial.fingerprint)
    assert not trial.is_stale()
    assert study("doubled", n=3) == [rows[1]]
    with pytest.raises(ValueError, match=r"told apart by \['n', 'seed', 'twice'\]"):
        study("doubled", n=4)
    trial.store(rows, "other code")
    assert trial.is_stale()


def test_the_rows_of_a_module_s_studies_lie_in_one_file(trial):
    other = study_named("other")
    other.store([{"x": 1}], "a")
    trial.store([{"x": 2}, {"x": 3}], "b")
    assert [row["x"] for row in (*study("other"), *study("doubled"))] == [1, 2, 3]
    assert list(json.loads(trial.file.read_text("utf-8"))) == ["doubled", "other"]
    assert trial.file.read_text("utf-8").count("\n") == 9, "a line each"


def test_an_unknown_study_is_refused_by_name():
    with pytest.raises(ValueError, match=f"no study 'deep'; there are .*{next(iter(studies()))}"):
        study("deep")
