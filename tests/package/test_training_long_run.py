import io
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file

import transformer_block
from transformer_block import checkpoint
from transformer_block.language_model import LanguageModel
from transformer_block.training import __main__ as command
from transformer_block.training import long_run, states
from transformer_block.training.long_run import Listener, Progress, run_plan
from transformer_block.training.loop import one_thread, train
from transformer_block.training.plan import Plan
from transformer_block.training.texts import ToyData

PLAN = Plan(
    d_model=16, n_heads=2, n_layers=1, steps=8, batch_size=6, lr=1e-2, save_every=2, judge_every=4
)
FLAGS = [
    *("--d-model", "16", "--n-heads", "2", "--n-layers", "1", "--steps", "8", "--lr", "1e-2"),
    *("--batch-size", "6", "--save-every", "2", "--judge-every", "4", "--report-every", "4"),
]


class Ends(Exception):
    """Stands for whatever ends a run at once."""


@pytest.fixture(scope="module", autouse=True)
def on_one_thread():
    """Let sums come out the same to the last bit, whoever computes them."""
    with one_thread():
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One run that nothing has disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    return run_plan(PLAN, folder), folder


def ended_at(step, monkeypatch):
    """Let the run end just before that step, as if the power were cut."""
    one_step = long_run._Training._one_step

    def ending(self):
        if self.step == step:
            raise Ends
        return one_step(self)

    monkeypatch.setattr(long_run._Training, "_one_step", ending)


def same(one, two):
    ours, theirs = dict(one.named_parameters()), dict(two.named_parameters())
    return ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in ours)


# The loop


def test_the_long_loop_is_the_short_loop(whole):
    run, _ = whole
    with torch.random.fork_rng():
        torch.manual_seed(PLAN.seed)
        model = LanguageModel(PLAN.config(run.data.vocab_size))

    class Steps:
        def batches(self, n_batches, batch_size, generator):
            return (run.data.batch(step, PLAN) for step in range(n_batches))

    short = train(model, Steps(), seed=0, recipe=PLAN.recipe())
    assert torch.equal(short.losses, run.losses[:, 0])
    assert torch.equal(short.grad_norms, run.losses[:, 1])
    assert same(short.model, run.model)


def test_what_is_in_the_folder_is_what_was_trained(whole):
    run, folder = whole
    model = transformer_block.load(folder / "model.safetensors")
    assert same(model, run.model)
    assert ToyData().judge(model, 6) == pytest.approx(float(run.judged[-1, 1]), abs=1e-6)
    assert run.judged[:, 0].tolist() == [4, 8]
    header, *lines = (folder / "losses.csv").read_text("utf-8").splitlines()
    assert header == "step,loss,grad_norm,excess"
    table = [line.split(",") for line in lines]
    assert [int(row[0]) for row in table] == list(range(1, 9))
    assert torch.equal(torch.tensor([[float(c) for c in row[1:3]] for row in table]), run.losses)
    assert [bool(row[3]) for row in table] == [False, False, False, True] * 2


def test_the_worlds_random_state_is_left_alone(tmp_path):
    before = torch.get_rng_state()
    run_plan(replace(PLAN, steps=1), tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def prove_accumulation(weight: Callable[[int, int], float], whole, folder, monkeypatch):
    monkeypatch.setattr(long_run, "weight_of_part", weight)
    for parts in (2, 3):
        run = run_plan(replace(PLAN, accumulate=parts), folder / str(parts))
        assert (run.losses - whole.losses).abs().max() < 1e-5


def test_parts_of_a_batch_are_one_batch(whole, tmp_path, monkeypatch, caught):
    def proof(weight):
        prove_accumulation(weight, whole[0], tmp_path / weight.__name__, monkeypatch)

    def not_divided(here, in_all):
        return 1.0

    def mean_of_means(here, in_all):
        return 0.5

    proof(long_run.weight_of_part)
    caught(proof, not_divided, mean_of_means)


def test_mixed_precision_is_near_and_only_where_asked(whole, tmp_path):
    run = run_plan(replace(PLAN, precision="bf16"), tmp_path)
    apart = (run.losses - whole[0].losses).abs().max()
    assert 1e-5 < apart < 0.1
    assert {p.dtype for p in run.model.parameters()} == {torch.float32}


def test_a_compiled_model_learns_the_same(whole, tmp_path, monkeypatch):
    calls = []

    def compiled(module):
        return lambda ids: calls.append(1) or module(ids)

    monkeypatch.setattr(torch, "compile", compiled)
    run = run_plan(replace(PLAN, compile=True), tmp_path)
    assert len(calls) == 8
    assert torch.equal(run.losses, whole[0].losses)


def test_a_loss_that_is_no_number_ends_the_run_and_is_not_kept(tmp_path):
    plan = replace(PLAN, lr=1e30, report_every=3, warm_up=0.0)
    with pytest.raises(ValueError, match=r"training broke at step 1: .*lower lr"):
        run_plan(plan, tmp_path)
    assert states.stored(tmp_path) == []


# Stopped and resumed


def prove_resuming(batch, whole, folder, monkeypatch):
    with monkeypatch.context() as patched:
        ended_at(5, patched)
        with pytest.raises(Ends):
            run_plan(PLAN, folder)
    assert states.newest(folder)[0].step == 4
    with monkeypatch.context() as patched:
        patched.setattr(ToyData, "batch", batch)
        run = run_plan(PLAN, folder)
    assert torch.equal(run.losses, whole.losses)
    assert torch.equal(run.judged, whole.judged)
    assert same(run.model, whole.model)


def test_what_follows_a_resume_is_what_would_have_followed(whole, tmp_path, monkeypatch, caught):
    batch = ToyData.batch

    def from_the_beginning(self, step, plan):
        return batch(self, step - 4, plan)

    prove_resuming(batch, whole[0], tmp_path / "right", monkeypatch)
    caught(
        lambda b: prove_resuming(b, whole[0], tmp_path / "wrong", monkeypatch), from_the_beginning
    )


@pytest.mark.parametrize("lost", ["first_moments", "second_moments", "weights"])
def test_all_of_the_state_is_needed(lost, whole, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        ended_at(5, patched)
        with pytest.raises(Ends):
            run_plan(PLAN, tmp_path)
    kept = states.newest(tmp_path)[0]
    setattr(kept, lost, {name: 0 * w for name, w in getattr(kept, lost).items()})
    states.write(kept, tmp_path)
    assert not torch.equal(run_plan(PLAN, tmp_path).losses, whole[0].losses)


KILLED = """
import torch
torch.set_num_threads(1)
import os, signal, sys
from transformer_block.training import __main__, long_run
one_step = long_run._Training._one_step
def dying(self):
    if self.step == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return one_step(self)
long_run._Training._one_step = dying
sys.exit(__main__.main(sys.argv[1:]))
"""


@pytest.mark.skipif(os.name == "nt", reason="there is no kill -9")
def test_kill_9_costs_no_bit(whole, tmp_path, capsys):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", KILLED, "--out", str(tmp_path), *FLAGS],
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert done.stderr == ""
    assert [path.name for path in states.stored(tmp_path)] == [
        "step-000000004.safetensors",
        "step-000000002.safetensors",
    ]
    assert command.main(["--out", str(tmp_path), *FLAGS]) == 0
    assert "going on after step 4 of 8" in capsys.readouterr().out
    assert (tmp_path / "losses.csv").read_bytes() == (whole[1] / "losses.csv").read_bytes()
    # the file's own bytes may differ: the library writes its metadata in any order
    killed, never = (load_file(folder / "model.safetensors") for folder in (tmp_path, whole[1]))
    assert killed.keys() == never.keys()
    assert all(torch.equal(killed[name], never[name]) for name in never)


@pytest.mark.skipif(os.name == "nt", reason="a process cannot send itself the signal there")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_that_is_asked_for_costs_no_bit(number, whole, tmp_path):
    at_3 = Listener(on_progress=lambda at: os.kill(os.getpid(), number) if at.step == 3 else None)
    handler = signal.getsignal(number)
    stopped = run_plan(replace(PLAN, report_every=3), tmp_path, listener=at_3)
    assert signal.getsignal(number) == handler
    assert (stopped.step, stopped.saved_at, stopped.model) == (4, 4, None)
    run = run_plan(PLAN, tmp_path)
    assert torch.equal(run.losses, whole[0].losses)
    assert torch.equal(run.judged, whole[0].judged)


def test_who_will_not_wait_asks_twice():
    with long_run._asked_to_stop() as asked:
        signal.raise_signal(signal.SIGINT)
        assert asked == [signal.SIGINT]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_finished_run_is_not_run_again(whole, monkeypatch):
    run, folder = whole
    ended_at(8, monkeypatch)
    again = run_plan(PLAN, folder)
    assert torch.equal(again.losses, run.losses)
    assert same(again.model, run.model)


def test_a_damaged_checkpoint_is_passed_over_and_said(whole, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        ended_at(5, patched)
        with pytest.raises(Ends):
            run_plan(PLAN, tmp_path)
    newest = states.stored(tmp_path)[0]
    newest.write_bytes(newest.read_bytes()[:-100])
    said = []
    run = run_plan(PLAN, tmp_path, listener=Listener(on_word=said.append))
    assert "going on from an older one" in said[0]
    assert said[1] == "going on after step 2 of 8"
    assert torch.equal(run.losses, whole[0].losses)


# What cannot be, and what is lost then: nothing


def test_a_full_disk_costs_only_the_checkpoint(whole, tmp_path):
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    for step in (4, 6):
        (tmp_path / f"step-{step:09d}.part").symlink_to("/dev/full")
    said = []
    run = run_plan(PLAN, tmp_path, listener=Listener(on_word=said.append))
    assert said[0] == (
        "the checkpoint of step 4 could not be written (No space left on device); that of step 2 "
        f"stands in {tmp_path}"
    )
    assert len(said) == 2
    assert torch.equal(run.losses, whole[0].losses)
    assert [path.name[:14] for path in states.stored(tmp_path)] == [
        "step-000000008",
        "step-000000002",
    ]


def test_a_model_that_cannot_be_written_is_not_lost(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save", full)
        with pytest.raises(OSError, match=r"all 8 steps are done.*make room"):
            run_plan(PLAN, tmp_path)
    assert run_plan(PLAN, tmp_path).model is not None


def test_another_plan_or_text_is_refused_and_nothing_touched(whole, tmp_path):
    _, folder = whole
    before = {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}
    with pytest.raises(
        ValueError, match=r"step 8 .*d_model is 32, there 16; lr is 0.1, there 0.01"
    ):
        run_plan(replace(PLAN, d_model=32, lr=0.1), folder)
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()} == before
    text = tmp_path / "text.txt"
    plan = replace(PLAN, text=str(text), steps=2)
    text.write_text("to be or not to be " * 20, "utf-8")
    run_plan(plan, tmp_path)
    text.write_text("to be or not to bee" * 20, "utf-8")
    with pytest.raises(ValueError, match="what is read has changed since"):
        run_plan(plan, tmp_path)


def test_to_begin_again_overwrites_nothing(tmp_path):
    plan = replace(PLAN, steps=2)
    first = run_plan(plan, tmp_path)
    said = []
    for number in (1, 2):
        kept = (tmp_path / "model.safetensors").read_bytes()
        run = run_plan(plan, tmp_path, fresh=True, listener=Listener(on_word=said.append))
        assert torch.equal(run.losses, first.losses)
        aside = tmp_path / f"earlier-{number}"
        assert said[-1] == f"the earlier run now lies in {aside}"
        assert (aside / "model.safetensors").read_bytes() == kept
    run_plan(plan, tmp_path / "new", fresh=True, listener=Listener(on_word=said.append))
    assert len(said) == 2


def test_two_runs_do_not_share_a_folder(tmp_path):
    with (
        FileLock(tmp_path / ".lock"),
        pytest.raises(ValueError, match="another run is at work"),
    ):
        run_plan(PLAN, tmp_path)


# The command


def test_the_command_says_what_it_does_and_draws_it(tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be " * 20, "utf-8")
    assert command.main(["--out", str(tmp_path), *FLAGS, "--text", str(text)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert re.match(r"step 4 of 8 · loss [45]\.\d{4} · held-out loss [45]\.\d{4} · ", out[0])
    assert out[0].endswith("left")
    assert "holds the model" in out[2]
    assert out[4].startswith("it says: 'to be or")
    assert (tmp_path / "loss.svg").read_text("utf-8").startswith("<svg xmlns")
    assert "held-out loss" in (tmp_path / "loss.svg").read_text("utf-8")


def test_without_matplotlib_there_are_still_losses(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert command.main(["--out", str(tmp_path), *FLAGS]) == 0
    out = capsys.readouterr().out
    assert "no picture of the losses: that needs matplotlib" in out
    assert "it says: " in out
    assert (tmp_path / "losses.csv").is_file()


def test_flags_go_before_the_file(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text('steps = 5\nparallel = "fsdp"\ntie_weights = true\n', "utf-8")
    flags = ["--steps", "7", "--no-tie-weights", "--betas", "0.8", "0.9"]
    asked = command._parse(["--out", "x", "--plan", str(path), *flags])
    assert command._values(asked) == {
        "steps": 7,
        "parallel": "fsdp",
        "tie_weights": False,
        "betas": [0.8, 0.9],
    }


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--stepz", "3"], "there is no --stepz; did you mean --steps?"),
        (["--steps=3", "4"], "what is 4?"),
        (["--steps", "many"], "invalid int value"),
        (["--parallel", "tensor"], "invalid choice"),
    ],
)
def test_flags_that_are_none_are_named(flags, said, capsys):
    with pytest.raises(SystemExit, match="2"):
        command.main(["--out", "x", *flags])
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--n-heads", "3"], "error: n_heads must divide d_model"),
        (["--plan", "none.toml"], "error: there is no plan at none.toml"),
        (["--text", "none.txt"], "error: there is no text at none.txt"),
        (["--device", "cuda"], "torch finds no GPU here"),
    ],
)
def test_what_the_user_can_mend_is_one_line(flags, said, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert command.main(["--out", str(tmp_path / "run"), *flags]) == 1
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def pressing_ctrl_c(times, monkeypatch):
    """Let the judge of step 4 press it."""
    judge = ToyData.judge

    def judged(*given):
        monkeypatch.setattr(ToyData, "judge", judge)
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        return judge(*given)

    monkeypatch.setattr(ToyData, "judge", judged)


def test_ctrl_c_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    pressing_ctrl_c(1, monkeypatch)
    assert command.main(["--out", str(tmp_path), *FLAGS]) == 130
    said = capsys.readouterr().out.splitlines()[-1]
    assert said == "stopped after step 5; kept is step 5; the same command goes on from there"


def test_ctrl_c_twice_ends_it_at_once(tmp_path, capsys, monkeypatch):
    pressing_ctrl_c(2, monkeypatch)
    assert command.main(["--out", str(tmp_path), *FLAGS]) == 130
    stands = "step-000000002.safetensors stands, and the same command goes on"
    assert capsys.readouterr().err == f"error: stopped at once; {tmp_path / stands}\n"


def test_a_terminal_has_one_line_that_renews_itself():
    class Terminal(io.TextIOWrapper):
        def isatty(self):
            return True

    stream = Terminal(io.BytesIO(), encoding="cp1252", newline="")
    teller = command.Teller(PLAN, stream)
    teller.progress(Progress(3, 1.5, "excess", math.nan, 1234.0, 61.4))
    teller.progress(Progress(4, 1.25, "excess", 0.5, 1234.0, 9.6))
    teller.word("天 done")
    stream.flush()
    assert stream.buffer.getvalue().decode("cp1252") == (
        "\rstep 3 of 8 · loss 1.5000 · 1,234 tokens/s · 1:01 left\x1b[K"
        "\rstep 4 of 8 · loss 1.2500 · excess 0.5000 · 1,234 tokens/s · 0:10 left\x1b[K"
        "\n? done\n"
    )


def test_between_judgements_the_line_is_straight():
    judged = torch.tensor([[2.0, 1.0], [4.0, 3.0], [5.0, 3.0]], dtype=torch.float64)
    drawn = command._between(judged, 5)
    assert math.isnan(drawn[0])
    assert drawn[1:] == [1.0, 2.0, 3.0, 3.0]
