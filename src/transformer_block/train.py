"""One readable training loop, and weights kept so that the same training runs once."""

import hashlib
import json
import logging
import math
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import safetensors
import safetensors.torch
import torch
import torch.nn.functional as F
from filelock import FileLock
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transformer_block import _checks
from transformer_block.ablate import freeze_all_but, without
from transformer_block.config import ModelConfig
from transformer_block.language_model import LanguageModel
from transformer_block.toy_language import Batch, ToyLanguage, toy_language

log = logging.getLogger(__name__)
IGNORE = -100  # what F.cross_entropy leaves out

# What decides how trained weights come out; a change in any of them makes old weights stale.
_CODE = (
    *("_checks", "attention", "norm", "feed_forward", "multi_head", "config", "block"),
    *("language_model", "ablate", "toy_language", "train"),
)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Say how to train: AdamW, a short warm-up, then down along a cosine.

    Raises:
        ValueError: for settings that cannot train.
    """

    steps: int = 800
    batch_size: int = 48
    lr: float = 4e-3
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.01
    warm_up: float = 0.02  # share of the steps
    lr_last: float = 0.05  # share of lr
    clip: float = 1.0  # longest gradient; math.inf: any

    def __post_init__(self) -> None:
        """Check every field."""
        _checks.positive(steps=self.steps, batch_size=self.batch_size)
        if not (0 < self.lr < math.inf and self.clip > 0):
            raise ValueError(f"lr and clip must be above 0, not {self.lr} and {self.clip}")
        if not (0 <= self.warm_up <= 1 and 0 <= self.lr_last <= 1 and self.weight_decay >= 0):
            raise ValueError(
                f"warm_up and lr_last are shares in 0 … 1 and weight_decay is at least 0, "
                f"not {self.warm_up}, {self.lr_last} and {self.weight_decay}"
            )

    def lr_at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        warm = round(self.warm_up * self.steps)
        if step < warm:
            return self.lr * (step + 1) / warm
        done = (step - warm) / max(1, self.steps - warm)
        return self.lr * (self.lr_last + (1 - self.lr_last) * (1 + math.cos(math.pi * done)) / 2)


TOY_RECIPE = Recipe()


def toy_config(**changes: object) -> ModelConfig:
    """Return the standard model of the toy language, with these fields changed.

    >>> toy_config(n_heads=1).d_head
    64
    """
    sizes = {"n_ctx": 16, "d_model": 64, "n_heads": 4, "n_layers": 2, "d_ff": 256}
    return ModelConfig(**{"vocab_size": len(toy_language().vocabulary), **sizes, **changes})  # type: ignore[arg-type]  # checked by ModelConfig


@runtime_checkable
class Source(Protocol):
    """Anything that yields batches: the toy language, part of it, or another."""

    def batches(
        self, n_batches: int, batch_size: int, generator: torch.Generator
    ) -> Iterator[Batch]:
        """Yield that many batches."""
        ...


@dataclass
class TrainingRun:
    """Hold a trained model and how it came about."""

    model: LanguageModel
    losses: Float[Tensor, " steps"]  # nats per token, of the batch at each step
    grad_norms: Float[Tensor, " steps"]  # before clipping
    snapshots: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    note: str = "trained now"  # or where the weights came from

    def at(self, step: int) -> LanguageModel:
        """Return the model as it was before that step (one of `keep_at`), in place.

        Raises:
            ValueError: naming the steps that were kept.
        """
        if step not in self.snapshots:
            raise ValueError(f"kept were the steps {sorted(self.snapshots)}, not {step}")
        _fill(self.model, self.snapshots[step])
        return self.model


def next_token_loss(
    logits: Float[Tensor, "B n vocab_size"],
    ids: Int[Tensor, "B n"],
    counts: Bool[Tensor, "B n"] | None = None,
) -> Float[Tensor, ""]:
    """Score the prediction at position t against the token at t+1, in nats per token.

    loss = −mean log softmax(logits[t])[ids[t+1]]. The shift is made here and nowhere else.
    `counts` says which tokens are to be predicted (True); all of them unless given.

    Raises:
        ValueError: if no token is left to predict: a mean over nothing is not a number.
    """
    targets = torch.full_like(ids, IGNORE)
    targets[:, :-1] = ids[:, 1:]
    if counts is not None:
        targets[:, :-1].masked_fill_(~counts[:, 1:], IGNORE)
    if not (targets != IGNORE).any():
        raise ValueError(
            f"no token to predict in ids of shape {list(ids.shape)}; a sequence needs at least "
            "two tokens, and the second or a later one must count"
        )
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE)


def train(
    model: LanguageModel,
    source: Source,
    *,
    seed: int,
    recipe: Recipe = TOY_RECIPE,
    keep_at: Sequence[int] = (),
    on_step: Callable[[int, float], None] | None = None,
) -> TrainingRun:
    """Train a model in place: forward, loss, backward, step.

    The batches depend on `seed` alone, and no random number is drawn from torch's global state.
    Torch uses one thread meanwhile, so that the result does not depend on the number of cores.
    `on_step(step, loss)` is called after each step; `keep_at` names steps before which the
    weights are copied (`recipe.steps` is the end).

    Raises:
        ValueError: if the loss stops being a number, naming the step and what to change.
    """
    learning = [p for p in model.parameters() if p.requires_grad]
    fused = all(p.device.type in ("cpu", "cuda") for p in learning)
    optimiser = torch.optim.AdamW(
        learning, lr=recipe.lr, betas=recipe.betas, weight_decay=recipe.weight_decay, fused=fused
    )
    run = TrainingRun(model, torch.zeros(recipe.steps), torch.zeros(recipe.steps))
    device = learning[0].device
    batches = source.batches(recipe.steps, recipe.batch_size, torch.Generator().manual_seed(seed))
    model.train()
    with one_thread():
        for step, (ids, counts) in enumerate(batches):
            if step in keep_at:
                run.snapshots[step] = _weights(model)
            optimiser.param_groups[0]["lr"] = recipe.lr_at(step)
            ids, counts = ids.to(device), counts.to(device)
            try:
                loss = next_token_loss(model(ids), ids, counts)
            except ValueError as error:
                if step == 0:
                    raise
                raise ValueError(f"training broke at step {step}: {error}; lower lr") from error
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            run.losses[step] = loss.detach()
            run.grad_norms[step] = torch.nn.utils.clip_grad_norm_(learning, recipe.clip)
            _refuse_non_finite(run.losses[step], run.grad_norms[step], step)
            optimiser.step()
            if on_step is not None:
                on_step(step, float(run.losses[step]))
        if recipe.steps in keep_at:
            run.snapshots[recipe.steps] = _weights(model)
    model.eval()
    return run


def _refuse_non_finite(loss: Tensor, grad_norm: Tensor, step: int) -> None:
    if not math.isfinite(float(loss) + float(grad_norm)):
        raise ValueError(
            f"training broke at step {step}: the loss is {float(loss)}, the gradient "
            f"{float(grad_norm)}; lower lr, clip the gradient, or warm up for longer"
        )


def _weights(model: LanguageModel) -> dict[str, Tensor]:
    """Return a copy of every parameter; a tied one once."""
    return {name: p.detach().cpu().clone() for name, p in model.named_parameters()}


@torch.no_grad()
def _fill(model: LanguageModel, weights: dict[str, Tensor]) -> None:
    """Put weights into a model, strictly: the same names, the same shapes."""
    parameters = dict(model.named_parameters())
    if {n: p.shape for n, p in parameters.items()} != {n: w.shape for n, w in weights.items()}:
        raise ValueError("these weights belong to another model: names or shapes differ")
    for name, parameter in parameters.items():
        parameter.copy_(weights[name])


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute with one thread, and put its number of threads back afterwards.

    Small models gain nothing from more, and sums come out the same on any number of cores.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# Trainings by description, kept on disk


@dataclass(frozen=True, kw_only=True)
class Job:
    """Describe one training on the toy language, from the draw of the weights to the last step.

    `without` is a part that `ablate.without` takes out; `only` the parts that may learn
    (`ablate.freeze_all_but`); `families` those of the language that are trained on: all, where
    these are empty. `corpus` is the size of a finite corpus, drawn with `seed`, that takes the
    language's place.
    """

    config: ModelConfig = field(default_factory=toy_config)
    seed: int
    recipe: Recipe = TOY_RECIPE
    without: str | None = None
    only: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    corpus: int | None = None
    keep_at: tuple[int, ...] = ()

    def model(self) -> LanguageModel:
        """Return the untrained model; torch's global random state is left as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model = LanguageModel(self.config)
        if self.without is not None:
            model = without(model, self.without)
        if self.only:
            model = freeze_all_but(model, *self.only)
        return model

    def language(self) -> ToyLanguage:
        """Return what it is trained on."""
        language = toy_language()
        if self.families:
            language = language.only(*self.families)
        if self.corpus is not None:
            # Not the generator of the batches: the same numbers would draw both.
            language = language.corpus(self.corpus, torch.Generator().manual_seed(~self.seed))
        return language

    def run(self, on_step: Callable[[int, float], None] | None = None) -> TrainingRun:
        """Train, whatever is on disk."""
        return train(
            self.model(),
            self.language(),
            seed=self.seed,
            recipe=self.recipe,
            keep_at=self.keep_at,
            on_step=on_step,
        )

    @property
    def key(self) -> str:
        """A digest of all that decides the weights: job, language, code, torch, processor level."""
        language = self.language()
        facts = [
            json.dumps(asdict(self), sort_keys=True),
            repr((language.vocabulary, list(language.sentences.items()))),
            *(_source(name) for name in _CODE),
            torch.__version__,
            torch.backends.cpu.get_cpu_capability(),
        ]
        return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:24]


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
    path = cached_at(job)
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
    thread each; where they cannot be started, the jobs run here one after another.
    `on_done(index, run)` is called as each is ready, in the order of `jobs`.
    """
    processes = min(processes or 2, os.cpu_count() or 1)
    missing = [i for i, job in enumerate(jobs) if _read(cached_at(job), job)[0] is None]
    runs: list[TrainingRun] = []
    if processes > 1 and len(missing) > 1:
        try:
            with ProcessPoolExecutor(
                processes, mp_context=multiprocessing.get_context("spawn")
            ) as pool:
                waiting = {i: pool.submit(_run_to_bytes, jobs[i]) for i in missing}
                for i, job in enumerate(jobs):
                    runs.append(
                        _from_bytes(waiting[i].result(), job) if i in waiting else run_job(job)
                    )
                    if on_done is not None:
                        on_done(i, runs[i])
        except (BrokenProcessPool, OSError) as error:
            log.info("no training in other processes (%s); one after another instead", error)
    for i in range(len(runs), len(jobs)):
        runs.append(run_job(jobs[i]))
        if on_done is not None:
            on_done(i, runs[i])
    return runs


def _run_to_bytes(job: Job) -> bytes:
    """Work in another process; bytes come back, so that no shared memory outlives it."""
    return _to_bytes(run_job(job))


# The cache: one safetensors file for each job, named by its key


def cache_folder() -> Path:
    """Return where weights are kept: $TRANSFORMER_BLOCK_CACHE, or the user's cache folder."""
    if chosen := os.environ.get("TRANSFORMER_BLOCK_CACHE"):
        return Path(chosen)
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "transformer_block"


def cached_at(job: Job) -> Path:
    """Return the file that the job's weights are kept in."""
    return cache_folder() / f"{job.key}.safetensors"


def _source(name: str) -> str:
    return (Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8")


def _to_bytes(run: TrainingRun) -> bytes:
    tensors = {f"weights/{name}": w for name, w in _weights(run.model).items()}
    for step, weights in run.snapshots.items():
        tensors |= {f"step {step}/{name}": w for name, w in weights.items()}
    tensors |= {"losses": run.losses, "grad_norms": run.grad_norms}
    return safetensors.torch.save(tensors, {"note": run.note})


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
    _fill(model, groups.pop("weights", {}))
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
    run.note = f"from {path}"
    return run, ""


def _write(path: Path, data: bytes) -> None:
    """Write a whole file or none: first under another name, then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


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
