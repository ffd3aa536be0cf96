import logging
import math
import multiprocessing
import os
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from transformer_block.config import ModelConfig
from transformer_block.language import toy_language
from transformer_block.language_model import LanguageModel
from transformer_block.training import (
    STANDARD_RECIPE,
    Job,
    Recipe,
    TrainingRun,
    jobs,
    loop,
    next_token_loss,
    run_job,
    store,
    toy_config,
    train,
    train_many,
    trained,
)
from transformer_block.training.store import cache_folder, cached_at

L = toy_language()
V = len(L.vocabulary)
CONFIG = ModelConfig(vocab_size=V, n_ctx=16, d_model=12, n_heads=3, n_layers=2, d_ff=20)
SHORT = Recipe(steps=6, batch_size=5)


def job(**changes):
    return Job(**({"config": CONFIG, "seed": 4, "recipe": SHORT} | changes))


def same(one, two):
    ours, theirs = dict(one.named_parameters()), dict(two.named_parameters())
    return ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in ours)


@pytest.fixture(autouse=True)
def cache_of_this_test(tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_BLOCK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def counted(monkeypatch):
    """Count the trainings."""
    calls = []

    def counting(*args, **kwargs):
        calls.append(kwargs["seed"])
        return train(*args, **kwargs)

    monkeypatch.setattr(jobs, "train", counting)
    return calls


# The loss


def prove_loss(loss):
    ids = torch.tensor([[3, 1, 4, 1, 2], [2, 6, 5, 3, 5]])
    perfect = torch.zeros(2, 5, 17)
    perfect[:, :-1] = 1000.0 * F.one_hot(ids[:, 1:], 17)
    assert float(loss(perfect, ids)) == pytest.approx(0, abs=1e-6)


def test_whoever_knows_the_next_token_loses_nothing(caught):
    prove_loss(next_token_loss)
    caught(
        prove_loss,
        lambda logits, ids: F.cross_entropy(logits.flatten(0, 1), ids.flatten()),  # no shift
        lambda logits, ids: next_token_loss(logits[:, :-1], ids[:, 1:]),  # shifted twice
    )


@pytest.mark.parametrize("vocab_size", [17, 5])  # n = 5 as well
def test_the_loss_is_the_mean_over_positions(vocab_size):
    logits = torch.randn(2, 5, vocab_size, dtype=torch.float64)
    ids = torch.randint(0, vocab_size, (2, 5))
    by_hand = [-logits[b, t].log_softmax(0)[ids[b, t + 1]] for b in range(2) for t in range(4)]
    assert float(next_token_loss(logits, ids)) == pytest.approx(float(sum(by_hand)) / 8)


def test_tokens_that_do_not_count_change_nothing():
    logits, ids = torch.randn(2, 5, 17), torch.randint(0, 17, (2, 5))
    counts = torch.tensor([[False, True, True, False, False], [False, True, True, True, True]])
    loss = next_token_loss(logits, ids, counts)
    logits[0, 2:] = 99.0
    ids[0, 3:] = 0
    assert torch.equal(next_token_loss(logits, ids, counts), loss)


@pytest.mark.parametrize("n", [1, 5])
def test_a_mean_over_nothing_is_refused(n):
    logits, ids = torch.randn(2, n, 17), torch.randint(0, 17, (2, n))
    counts = torch.zeros(2, n, dtype=torch.bool)
    counts[:, 0] = True  # the first token is predicted by none
    with pytest.raises(ValueError, match="no token to predict"):
        next_token_loss(logits, ids, counts)


# The loop


def test_the_rate_warms_up_and_falls():
    recipe = Recipe(steps=100, lr=2.0, warm_up=0.1, lr_last=0.25)
    rates = [recipe.lr_at(step) for step in range(100)]
    assert rates[:10] == pytest.approx([0.2 * (i + 1) for i in range(10)])
    assert rates[10] == pytest.approx(2.0)
    assert rates[55] == pytest.approx((2.0 + 0.5) / 2)
    assert rates[-1] == pytest.approx(0.5, abs=0.01)
    assert sorted(rates[10:], reverse=True) == rates[10:]
    assert Recipe(steps=1).lr_at(0) == Recipe().lr


@pytest.mark.parametrize(
    "wrong",
    [
        *({"steps": 0}, {"batch_size": 0}, {"lr": 0.0}, {"lr": math.nan}, {"clip": 0.0}),
        *({"warm_up": 1.1}, {"lr_last": -0.1}, {"weight_decay": -1.0}),
    ],
)
def test_settings_that_cannot_train_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Recipe(**wrong)


def test_the_loop_is_torchs_optimiser_step_by_step():
    recipe = Recipe(steps=3, batch_size=5, warm_up=0.0, lr_last=1.0, clip=0.5)
    ours, theirs = job().model(), job().model()
    run = train(ours, L, seed=6, recipe=recipe)
    adam = torch.optim.AdamW(theirs.parameters(), lr=4e-3, betas=(0.9, 0.99), weight_decay=0.01)
    for step, (ids, counts) in enumerate(L.batches(3, 5, torch.Generator().manual_seed(6))):
        log_p = theirs(ids)[:, :-1].log_softmax(-1)
        loss = -log_p.gather(-1, ids[:, 1:, None])[..., 0][counts[:, 1:]].mean()
        adam.zero_grad()
        loss.backward()
        norm = math.sqrt(sum(float((p.grad**2).sum()) for p in theirs.parameters()))
        for p in theirs.parameters():
            p.grad *= min(1.0, 0.5 / norm)
        adam.step()
        assert float(run.losses[step]) == pytest.approx(loss.item(), abs=1e-5)
        assert float(run.grad_norms[step]) == pytest.approx(norm, abs=1e-4)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(mine, other, rtol=0, atol=1e-4)


def test_training_lowers_the_loss_and_calls_back():
    seen = []
    run = train(
        job().model(),
        L.only("bank"),
        seed=1,
        recipe=Recipe(steps=60, batch_size=16, lr=1e-2),
        on_step=lambda step, loss: seen.append((step, loss)),
    )
    assert [step for step, _ in seen] == list(range(60))
    assert [loss for _, loss in seen] == pytest.approx(run.losses.tolist())
    assert abs(float(run.losses[0]) - math.log(V)) < 0.2
    assert float(run.losses[-5:].mean()) < 0.3 * float(run.losses[0])
    assert not run.model.training


def test_a_seed_gives_the_same_weights_and_leaves_the_world_alone():
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    assert same(job().run().model, job().run().model)
    assert not same(job().run().model, job(seed=5).run().model)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_one_thread_meanwhile_and_as_many_as_before_afterwards():
    torch.set_num_threads(2)
    try:
        seen = []
        train(
            job().model(),
            L,
            seed=0,
            recipe=SHORT,
            on_step=lambda *_: seen.append(torch.get_num_threads()),
        )
        assert set(seen) == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_snapshots_are_the_weights_before_a_step():
    run = job(keep_at=(0, 3, 6)).run()
    end = {n: p.clone() for n, p in run.model.named_parameters()}
    assert sorted(run.snapshots) == [0, 3, 6]
    assert same(run.at(0), job().model())
    assert all(torch.equal(p, end[n]) for n, p in run.at(6).named_parameters())
    assert all(torch.equal(p, end[n]) for n, p in run.model.named_parameters()), "left as it was"
    assert run.at(3) is not run.at(3)
    with pytest.raises(ValueError, match=r"\[0, 3, 6\], not 2"):
        run.at(2)


@pytest.mark.parametrize("lr", [1e30, 1e20])
def test_a_training_that_breaks_says_at_which_step(lr):
    with pytest.raises(ValueError, match=r"training broke at step \d+: .*lower lr"):
        train(job().model(), L, seed=0, recipe=Recipe(steps=40, batch_size=5, lr=lr))


def test_a_loss_that_is_no_number_is_named():
    with pytest.raises(ValueError, match=r"broke at step 7: the loss is nan.*lower lr"):
        loop._refuse_non_finite(torch.tensor(math.nan), torch.tensor(1.0), 7)


def test_input_that_does_not_fit_is_not_called_a_broken_training():
    model = LanguageModel(replace(CONFIG, n_ctx=7))
    with pytest.raises(ValueError, match="at most n_ctx = 7"):
        train(model, L.only("weather"), seed=0, recipe=SHORT)


def test_the_first_loss_is_near_ln_V():
    for d_model in (32, 512):
        for tie in (False, True):
            config = toy_config(d_model=d_model, n_layers=1, tie_weights=tie)
            ids, counts = L.sample(16, torch.Generator().manual_seed(2))
            with torch.no_grad():
                loss = next_token_loss(Job(config=config, seed=3).model()(ids), ids, counts)
            assert abs(float(loss) - math.log(V)) < 0.2


# The cache


def test_the_second_time_nothing_is_trained(counted):
    first, second = run_job(job(keep_at=(3,))), run_job(job(keep_at=(3,)))
    assert counted == [4]
    assert same(first.model, second.model)
    assert torch.equal(first.losses, second.losses)
    assert torch.equal(first.grad_norms, second.grad_norms)
    assert same(first.at(3), second.at(3))
    assert first.note == "trained now"
    assert second.note.startswith("from ")
    assert not second.model.training


@pytest.mark.parametrize(
    "change",
    [
        {"config": replace(CONFIG, tie_weights=True)},
        {"config": replace(CONFIG, norm_place="post", activation="swiglu", norm="rms")},
        {"without": "ffn"},
        {"without": "all norms"},
        {"only": ("ffn",)},
        {"families": ("lives", "copy")},
        {"corpus": 30},
    ],
)
def test_every_kind_of_job_comes_back_from_the_cache(change, counted):
    first, second = run_job(job(**change)), run_job(job(**change))
    assert len(counted) == 1
    assert same(first.model, second.model)
    assert job(**change).key != job().key


def test_the_key_follows_all_that_decides(monkeypatch):
    keys = {job().key, job(seed=5).key, job(recipe=replace(SHORT, lr=1e-3)).key}
    with monkeypatch.context() as other:
        other.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "ANOTHER")
        keys.add(job().key)
    with monkeypatch.context() as other:
        other.setattr(jobs, "fingerprint", lambda name: f"other code of {name}")
        keys.add(job().key)
    with monkeypatch.context() as other:
        other.setattr(torch, "__version__", "2.0")
        keys.add(job().key)
    with set_to(torch.set_float32_matmul_precision, "medium", "highest"):
        keys.add(job().key)
    assert len(keys) == 7


@contextmanager
def set_to(put, value, before):
    put(value)
    try:
        yield
    finally:
        put(before)


WORLDS = {
    "float64": lambda: set_to(torch.set_default_dtype, torch.float64, torch.float32),
    "no device": lambda: torch.device("meta"),
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "two threads": lambda: set_to(torch.set_num_threads, 2, 1),
    "other attention": lambda: sdpa_kernel(SDPBackend.MATH),
    "no denormals": lambda: set_to(torch.set_flush_denormal, True, False),
    "deterministic": lambda: set_to(torch.use_deterministic_algorithms, True, False),
    "other seed": lambda: set_to(torch.manual_seed, 5, 20),
}


@pytest.mark.parametrize("world", WORLDS)
def test_weights_do_not_depend_on_what_torch_is_set_to(world, counted):
    plain = job(keep_at=(3,)).run()
    with WORLDS[world]():
        before = torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()
        found = [run_job(job(keep_at=(3,))) for _ in range(2)]  # trained, and from the cache
        assert (
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            torch.get_num_threads(),
        ) == before
    assert counted == [4, 4]
    for run in found:
        assert same(run.model, plain.model)
        assert same(run.at(3), plain.at(3))
        assert torch.equal(run.losses, plain.losses)
        parameters = list(run.model.parameters())
        assert all(p.dtype == torch.float32 and p.device.type == "cpu" for p in parameters)
        assert not any(p.is_inference() for p in parameters)


def test_weights_do_not_depend_on_the_order_of_sets():
    code = (
        "from transformer_block.training import Job, Recipe, toy_config\n"
        "run = Job(config=toy_config(d_model=8, d_ff=8), seed=1, recipe=Recipe(steps=2)).run()\n"
        "print(run.losses.tolist(), [p.sum().item() for p in run.model.parameters()])"
    )
    there = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "1"},  # here it is another one
        capture_output=True,
        text=True,
        check=True,
    )
    run = job(config=toy_config(d_model=8, d_ff=8), seed=1, recipe=Recipe(steps=2)).run()
    sums = [p.sum().item() for p in run.model.parameters()]
    assert there.stdout.strip() == f"{run.losses.tolist()} {sums}"


def test_training_learns_where_gradients_are_off():
    model = job().model()
    with torch.no_grad():
        assert not same(train(model, L, seed=1, recipe=SHORT).model, job().model())
        assert not torch.is_grad_enabled()


@pytest.mark.parametrize("damage", [b"", b"not weights", None])
def test_a_file_that_cannot_be_read_is_trained_again_and_said(damage, counted, caplog):
    path = cached_at(job())
    first = run_job(job())
    path.write_bytes(path.read_bytes()[:-9] if damage is None else damage)
    with caplog.at_level(logging.INFO, logger="transformer_block.training"):
        again = run_job(job())
    assert counted == [4, 4]
    assert same(first.model, again.model)
    assert "could not be read" in again.note
    assert "training again" in caplog.text
    assert run_job(job()).note.startswith("from ")


def test_weights_of_another_model_are_not_taken(counted):
    other = job(config=replace(CONFIG, d_ff=21))
    run_job(other)
    os.replace(cached_at(other), cached_at(job()))
    assert "another model" in run_job(job()).note
    assert counted == [4, 4]


def test_a_folder_that_cannot_be_written_costs_no_training(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TRANSFORMER_BLOCK_CACHE", str(tmp_path / "file" / "cache"))
    run = run_job(job())
    assert "cannot be written" in run.note
    assert len(run.losses) == 6


def test_a_full_disk_leaves_no_half_file(cache_of_this_test, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert "No space left" in run_job(job()).note
    assert not [p for p in cache_of_this_test.iterdir() if p.suffix != ".lock"]


def test_two_that_want_the_same_train_it_once(counted):
    runs = []
    threads = [threading.Thread(target=lambda: runs.append(run_job(job()))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted == [4]
    assert sorted(run.note[:5] for run in runs) == ["from ", "from ", "train"]


@pytest.fixture
def own_folder(monkeypatch, tmp_path):
    """A user with a home of this test, who has named no folder for the cache."""
    for name in ("TRANSFORMER_BLOCK_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    return tmp_path


@pytest.mark.skipif(sys.platform != "linux", reason="the rules of one system")
def test_the_cache_lies_where_the_standard_says(own_folder, monkeypatch):
    assert cache_folder() == own_folder / ".cache" / "transformer_block"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert cache_folder() == own_folder / ".cache" / "transformer_block"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/transformer_block")


def test_the_folder_that_was_chosen_is_taken(own_folder, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_BLOCK_CACHE", "~/weights")
    assert cache_folder() == own_folder / "weights"


@pytest.mark.skipif(sys.platform == "win32", reason="there each user has a home")
def test_without_a_home_it_trains_and_keeps_nothing(own_folder, monkeypatch, counted):
    pwd = pytest.importorskip("pwd")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)  # nobody has an entry
    monkeypatch.chdir(own_folder)
    assert "not kept, since there is no folder" in run_job(job()).note
    assert [len(run.losses) for run in train_many([job(seed=1), job(seed=2)])] == [6, 6]
    assert counted == [4, 1, 2]
    assert list(own_folder.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="there rights are inherited")
@pytest.mark.parametrize(("umask", "mode"), [(0o002, 0o664), (0o077, 0o600)])
def test_files_have_the_rights_that_the_user_gives(umask, mode, cache_of_this_test):
    with set_to(os.umask, umask, os.umask(0)):
        run_job(job())
    assert {stat.S_IMODE(file.stat().st_mode) for file in cache_of_this_test.iterdir()} == {mode}


def test_weights_that_nobody_reads_are_removed_and_nothing_else(cache_of_this_test):
    read, old = job(seed=1), job(seed=2)
    for each in (read, old):
        run_job(each)
    others = [cache_of_this_test / name for name in ("mine.safetensors", "notes.txt", "a.part")]
    half = cache_of_this_test / f"{old.key}-{'0' * 32}.part"
    for file in (*others, half):
        file.write_text("mine")
    long_ago = time.time() - (store.KEEP_DAYS + 1) * 24 * 3600
    for file in cache_of_this_test.iterdir():
        os.utime(file, (long_ago, long_ago))
    run_job(read)  # reads, and writes nothing
    assert cached_at(old).exists()
    run_job(job(seed=3))
    assert not cached_at(old).exists()
    assert not half.exists()
    assert all(file.exists() for file in (*others, cached_at(read), cached_at(job(seed=3))))


def test_trained_is_the_short_way_to_a_job():
    run = trained(CONFIG, seed=4, steps=2, families=("bank",))
    assert isinstance(run, TrainingRun)
    assert len(run.losses) == 2
    assert trained(CONFIG, seed=4, recipe=SHORT).losses.shape == (6,)
    assert store._job(seed=1) == Job(config=toy_config(), seed=1, recipe=STANDARD_RECIPE)


def test_many_jobs_run_in_other_processes_and_come_back_in_order(monkeypatch, counted):
    many = [job(seed=s) for s in (1, 2, 3, 2)]
    run_job(many[1])
    done, read = [], []
    really = store._read
    monkeypatch.setattr(store, "_read", lambda path, job: read.append(job) or really(path, job))
    monkeypatch.setattr(store.os, "cpu_count", lambda: 2)
    runs = train_many(many, on_done=lambda i, run: done.append((i, run.note[:5])))
    assert counted == [2], "the others were trained elsewhere"
    assert read == many, "each is read once"
    assert done == [(i, "from ") for i in range(4)]
    for one, each in zip(runs, many, strict=True):
        assert same(one.model, each.run().model)


def no_pool(*_, **__):
    raise OSError("no processes on this system")


def no_locks(*_, **__):
    raise NotImplementedError("no processes on this system")


class BrokenPool:
    def __init__(self, *_):
        self.shutdown = lambda **_: None

    def submit(self, *_):
        future = Future()
        future.set_exception(BrokenProcessPool("no processes on this system"))
        return future


@pytest.mark.parametrize("pool", [no_pool, no_locks, BrokenPool])
def test_many_jobs_run_here_where_no_process_can_be_started(pool, monkeypatch, caplog, counted):
    monkeypatch.setattr(store, "ProcessPoolExecutor", pool)
    monkeypatch.setattr(store.os, "cpu_count", lambda: 2)
    with caplog.at_level(logging.INFO, logger="transformer_block.training"):
        runs = train_many([job(seed=1), job(seed=2)])
    assert len(runs) == len(counted) == 2
    assert "no processes on this system" in caplog.text


def test_many_jobs_run_here_in_a_daemonic_process(monkeypatch, counted):
    monkeypatch.setattr(multiprocessing.process.current_process(), "_config", {"daemon": True})
    monkeypatch.setattr(store.os, "cpu_count", lambda: 2)
    assert len(train_many([job(seed=1), job(seed=2)])) == len(counted) == 2


def test_many_jobs_run_here_once_where_the_cache_cannot_be_written(monkeypatch, tmp_path, counted):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TRANSFORMER_BLOCK_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(store.os, "cpu_count", lambda: 2)
    runs = train_many([job(seed=1), job(seed=2)])
    assert counted == [1, 2]
    assert all("cannot be written" in run.note for run in runs)


def test_a_training_that_breaks_elsewhere_is_told_here(monkeypatch):
    monkeypatch.setattr(store.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(store, "ProcessPoolExecutor", lambda n, _: ThreadPoolExecutor(n))
    wild = Recipe(steps=40, batch_size=5, lr=1e30)
    with pytest.raises(ValueError, match="training broke at step"):
        train_many([job(recipe=wild), job(seed=2)])


def test_one_core_needs_no_other_process(counted):
    done = []
    runs = train_many([job(seed=1), job(seed=2)], processes=1, on_done=lambda i, _: done.append(i))
    assert counted == [1, 2]
    assert done == [0, 1]
    assert len(runs) == 2
    assert not multiprocessing.active_children()
