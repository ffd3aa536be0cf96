import json
import math
import sys

import pytest

from transformer_block.experiments import recorded
from transformer_block.experiments.recorded import Study, studies, study, study_named
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


def apart(again, stored, seeds, at=""):
    """Name the numbers that differ by more than 5 % and by more than half of what seeds differ by.

    Another processor rounds otherwise, and a training carries that on: two runs of one seed may
    end as far apart as two seeds that began close together, but not as two seeds in general.
    """
    if isinstance(stored, dict) and again.keys() == stored.keys():
        return [
            fault
            for key in stored
            for fault in apart(again[key], stored[key], [row[key] for row in seeds], f"{at} {key}")
        ]
    if isinstance(stored, list) and isinstance(again, list) and len(again) == len(stored):
        pairs = enumerate(zip(again, stored, strict=True))
        return [
            fault
            for i, (one, other) in pairs
            for fault in apart(one, other, [row[i] for row in seeds], f"{at}[{i}]")
        ]
    if isinstance(again, float) and isinstance(stored, (int, float)):
        least = max(5e-5, (max(seeds) - min(seeds)) / 2)
        return [] if math.isclose(again, stored, rel_tol=0.05, abs_tol=least) else [at]
    return [] if again == stored else [at]


def cheapest(name):
    """Return the place of the study's row that needs the fewest steps of blocks."""
    wanted = study_named(name).wanted()
    cost = [s.get("n_layers", 1) * s.get("steps", 1) for _, s in wanted]
    return cost.index(min(cost))


@every_study
@pytest.mark.usefixtures("untraced")
def test_a_row_comes_out_again(name):
    place = cheapest(name)
    seed, setting = study_named(name).wanted()[place]
    again, stored = study_named(name).measure(seed, setting), study(name)[place]
    faults = apart(again, stored, study(name, **setting))
    assert not faults, f"{faults}\n{again}\n{stored}"


@every_study
def test_a_study_is_what_its_module_says(name):
    marked = study_named(name)
    assert marked.name == name
    assert marked.__doc__
    assert marked.fingerprint == fingerprint(f"{marked.function.__module__}.{name}")
    assert marked.file.with_suffix(".py").is_file()


def test_rows_differ_where_a_number_or_a_name_does():
    row = {"seed": 31, "kind": "pre", "loss": [1.0, 2.0], "many": 3}
    seeds = [row, {**row, "loss": [1.0, 2.3]}]
    for near in ([1.01, 1.99], [1.04, 2.14], [1.0, 1.86]):
        assert not apart({**row, "loss": near}, row, seeds)
    for far in ([1.06, 2.0], [1.0, 2.16], [1.0], [1.0, math.nan]):
        assert apart({**row, "loss": far}, row, seeds)
    for wrong in ({"kind": "post"}, {"many": 4}, {"x": 1}):
        assert apart({**row, **wrong}, row, seeds)


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
