"""Two processes, started by torchrun, learn what one learns."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from transformer_block.training import __main__ as command
from transformer_block.training import processes, states
from transformer_block.training.long_run import run_plan
from transformer_block.training.plan import Plan
from transformer_block.training.processes import World

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or os.name == "nt", reason="torch has no gloo here"
)
PLAN = Plan(
    d_model=16, n_heads=2, n_layers=1, steps=8, batch_size=8, lr=1e-2, save_every=4, judge_every=4
)
HOW = {
    "ddp": {},
    "ddp in parts": {"accumulate": 2, "tie_weights": True},
    "fsdp": {"parallel": "fsdp"},
    "fsdp in parts": {"parallel": "fsdp", "accumulate": 2, "tie_weights": True},
    "fsdp, resumed": {"parallel": "fsdp"},
    "planted: mean of means": {},
}
SEVERAL = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_training_processes import HOW, PLAN, replace
from transformer_block.training import long_run
from transformer_block.training.processes import world
with world("cpu") as here:
    for name, how in HOW.items():
        if name.startswith("planted"):
            long_run.weight_of_part = lambda counted_here, counted_in_all: 1 / here.size
        long_run.run_plan(replace(PLAN, **how), Path(sys.argv[1]) / name, here)
"""


def torchrun(folder: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = folder / "script.py"
    script.write_text(code, "utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run(
        [*command, "--nproc-per-node", "2", str(script), *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=300,
    )


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """Train in one process: untied, and tied."""
    folder = tmp_path_factory.mktemp("one")
    runs = [run_plan(replace(PLAN, tie_weights=tied), folder / str(tied)) for tied in (False, True)]
    return runs, folder


@pytest.fixture(scope="module")
def several(one, tmp_path_factory):
    """Train in two processes, in every way there is."""
    folder = tmp_path_factory.mktemp("several")
    half = "step-000000004.safetensors"
    (folder / "fsdp, resumed").mkdir()
    (folder / "fsdp, resumed" / half).write_bytes((one[1] / "False" / half).read_bytes())
    done = torchrun(folder, SEVERAL, str(folder), str(Path(__file__).parent))
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    return folder


def prove_same_curve(one, folder, name):
    run = one[0][HOW[name].get("tie_weights", False)]
    state, _ = states.newest(folder / name)
    assert state.step == 8
    assert (state.losses - run.losses).abs().max() < 1e-5
    assert (state.judged - run.judged).abs().max() < 1e-5
    final = dict(run.model.named_parameters())
    assert all((w - final[n]).abs().max() < 1e-4 for n, w in state.weights.items())


@pytest.mark.parametrize("name", [name for name in HOW if not name.startswith("planted")])
def test_two_processes_have_the_curve_of_one(name, one, several):
    prove_same_curve(one, several, name)


def test_a_mean_of_means_is_caught(one, several, caught):
    caught(lambda name: prove_same_curve(one, several, name), "planted: mean of means")


def test_one_process_goes_on_where_two_have_stopped(one, several, tmp_path):
    half = "step-000000004.safetensors"
    (tmp_path / half).write_bytes((several / "fsdp" / half).read_bytes())
    run = run_plan(PLAN, tmp_path)
    assert (run.losses - one[0][0].losses).abs().max() < 1e-5


DYING = """
import os, signal, sys
from transformer_block.training import __main__, long_run
one_step = long_run._Training._one_step
def dying(self):
    if self.step == 6 and self.world.rank == int(os.environ["DIES"]):
        os.kill(os.getpid(), signal.SIGKILL)
    return one_step(self)
long_run._Training._one_step = dying
sys.exit(__main__.main(sys.argv[1:]))
"""


def test_a_killed_worker_ends_the_run_with_a_word_and_a_checkpoint(one, tmp_path, monkeypatch):
    flags = ["--out", str(tmp_path / "run")]
    for name in ("d_model", "n_heads", "n_layers", "steps", "batch_size", "lr", "save_every"):
        flags += ["--" + name.replace("_", "-"), str(getattr(PLAN, name))]
    flags += ["--judge-every", "4"]
    monkeypatch.setenv("DIES", "1")
    done = torchrun(tmp_path, DYING, *flags)
    assert done.returncode != 0
    said = re.findall(r"error: another process of this run is gone .*", done.stderr)
    assert len(said) == 1, done.stderr
    assert "remote worker" not in said[0]  # the advice of the library
    assert "step-000000004.safetensors stands, and the same command goes on" in said[0]
    assert command.main(flags) == 0
    losses = states.newest(tmp_path / "run")[0].losses
    assert (losses - one[0][0].losses).abs().max() < 1e-5


# One process alone


def test_what_goes_wrong_on_the_first_is_raised():
    def wrong():
        raise FileNotFoundError("no folder")

    with pytest.raises(FileNotFoundError, match="no folder"):
        World().first_does(wrong)


def test_a_world_of_one_asks_nobody():
    with processes.world("cpu") as here:
        assert here == World()
        assert here.first
        assert here.any(True)
        assert not here.any(False)
        assert float(here.sum(torch.tensor(3.0))) == 3.0
