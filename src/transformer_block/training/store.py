"""Trained weights kept on disk, so that the same training runs once."""

import logging
import multiprocessing
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from uuid import uuid4

import platformdirs
import safetensors
import safetensors.torch
from filelock import FileLock
from torch import Tensor

from transformer_block.config import ModelConfig
from transformer_block.training.jobs import Job, toy_config
from transformer_block.training.loop import Recipe, TrainingRun, fill, weights_of

log = logging.getLogger(__name__)

KEEP_DAYS = 60  # weights that nobody has read for so long are removed


def trained(config: ModelConfig | None = None, *, seed: int, **settings: object) -> TrainingRun:
    """Return a trained model: from the cache if the same training was done before.

    `config` is the standard one unless given; `settings` are the other fields of `Job`, or
    `steps=…` for the standard recipe with another length. What came from where is said in the
    run's `note` and logged.
    """
    return run_job(_job(config, seed=seed, **settings))


def _job(config: ModelConfig | None = None, *, seed: int, **settings: object) -> Job:
    if "steps" in settings:
        settings["recipe"] = Recipe(steps=settings.pop("steps"))  # type: ignore[arg-type]  # checked by Recipe
    return Job(config=config or toy_config(), seed=seed, **settings)  # type: ignore[arg-type]  # names are Job's own


def run_job(job: Job) -> TrainingRun:
    """Return the job's run from the cache, or train and keep it.

    Two processes that want the same weights train them once. A cache that cannot be read is
    trained again, one that cannot be written costs no training: both are said in the note.
    """
    try:
        path = cached_at(job)
    except OSError as error:
        run = job.run()
        run.note += f"; not kept, since {error}"
        log.info("%s", run.note)
        return run
    with _lock(path):
        found, problem = _read(path, job)
        if found is not None:
            log.info("weights of %s from %s", path.stem, path)
            return found
        if problem:
            log.info("%s; training again", problem)
        run = job.run()
        run.note = f"{problem}; trained again" if problem else "trained now"
        try:
            _write(path, _to_bytes(run))
        except OSError as error:
            run.note += f"; not kept, since {path.parent} cannot be written ({error.strerror})"
            log.info("%s", run.note)
    return run


def train_many(
    jobs: Sequence[Job],
    *,
    processes: int | None = None,
    on_done: Callable[[int, TrainingRun], None] | None = None,
) -> list[TrainingRun]:
    """Return the run of each job, several at a time, through the same cache.

    Up to `processes` (2 unless given, and no more than cores) fresh processes train with one
    thread each and fill the cache, which is read here. Where they cannot be started or the cache
    cannot be written, the jobs run here one after another.
    `on_done(index, run)` is called as each is ready, in the order of `jobs`.
    """
    with ExitStack() as at_the_end:
        filling = _fill_elsewhere(jobs, min(processes or 2, os.cpu_count() or 1), at_the_end)
        runs = []
        for i, job in enumerate(jobs):
            if job.key in filling:
                try:
                    filling[job.key].result()
                except BrokenProcessPool as error:
                    log.info("%s; training here instead", error)
            runs.append(run_job(job))
            if on_done is not None:
                on_done(i, runs[i])
    return runs


def _fill_elsewhere(
    jobs: Sequence[Job], processes: int, at_the_end: ExitStack
) -> dict[str, Future[None]]:
    """Let other processes train what the cache lacks; return what they do by key."""
    try:
        missing = {job.key: job for job in jobs if not cached_at(job).is_file()}
        processes = min(processes, len(missing))
        if processes < 2:
            return {}
        if multiprocessing.current_process().daemon:
            raise OSError("a daemonic process may start none")
        cache_folder().mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=cache_folder()):
            pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))
        at_the_end.callback(pool.shutdown, cancel_futures=True)
        return {key: pool.submit(_fill_cache, job) for key, job in missing.items()}
    except (OSError, ImportError, NotImplementedError) as error:
        log.info("no training in other processes (%s); one after another instead", error)
        return {}


def _fill_cache(job: Job) -> None:
    run_job(job)


# The cache: one safetensors file for each job, named by its key


def cache_folder() -> Path:
    """Return where weights are kept: $TRANSFORMER_BLOCK_CACHE, or in the user's cache folder.

    Raises:
        OSError: if neither is known.
    """
    try:
        if chosen := os.environ.get("TRANSFORMER_BLOCK_CACHE"):
            return Path(chosen).expanduser()
        return platformdirs.user_cache_path("transformer_block", appauthor=False)
    except RuntimeError as error:
        way_out = "set HOME or TRANSFORMER_BLOCK_CACHE"
        raise OSError(f"there is no folder for it ({error}); {way_out}") from error


def cached_at(job: Job) -> Path:
    """Return the file that the job's weights are kept in."""
    return cache_folder() / f"{job.key}.safetensors"


def _to_bytes(run: TrainingRun) -> bytes:
    tensors = {f"weights/{name}": w for name, w in weights_of(run.model).items()}
    for step, weights in run.snapshots.items():
        tensors |= {f"step {step}/{name}": w for name, w in weights.items()}
    tensors |= {"losses": run.losses, "grad_norms": run.grad_norms}
    return safetensors.torch.save(tensors)


def _from_bytes(data: bytes, job: Job) -> TrainingRun:
    """Build the job's run from bytes; ValueError where they are not that."""
    try:
        tensors = safetensors.torch.load(data)
        losses, grad_norms = tensors.pop("losses"), tensors.pop("grad_norms")
    except (safetensors.SafetensorError, KeyError) as error:
        raise ValueError(f"not a file of weights ({error})") from error
    groups: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        group, _, name = key.partition("/")
        groups.setdefault(group, {})[name] = tensor
    model = job.model()
    fill(model, groups.pop("weights", {}))
    model.eval()
    snapshots = {int(group.removeprefix("step ")): w for group, w in groups.items()}
    return TrainingRun(model, losses, grad_norms, dict(sorted(snapshots.items())))


def _read(path: Path, job: Job) -> tuple[TrainingRun | None, str]:
    """Return the run kept in a file, or None and what is wrong with the file."""
    try:
        run = _from_bytes(path.read_bytes(), job)
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError) as error:
        return None, f"the kept weights {path} could not be read ({error})"
    with suppress(OSError):  # a file of another user, or a folder that cannot be written
        path.touch()  # so that its age says when it was last read
    run.note = f"from {path}"
    return run, ""


def _write(path: Path, data: bytes) -> None:
    """Write a whole file or none: first under another name, then renamed; remove old ones."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.stem}-{uuid4().hex}.part")
    try:
        part.write_bytes(data)  # with the rights that the user's umask gives, for a shared folder
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    oldest = time.time() - KEEP_DAYS * 24 * 3600
    for file in path.parent.iterdir():
        with suppress(OSError):
            if _OURS.fullmatch(file.name) and file.stat().st_mtime < oldest:
                file.unlink()


# nothing else is ever removed, whatever folder the user has named
_OURS = re.compile(r"[0-9a-f]{24}(-[0-9a-f]{32})?\.(safetensors|lock|part)")


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold a job for this process; the system lets go of it if the process dies."""
    lock = FileLock(path.with_suffix(".lock"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError:  # a folder that cannot be written: nothing to share, nothing to guard
        yield
        return
    try:
        yield
    finally:
        lock.release()
