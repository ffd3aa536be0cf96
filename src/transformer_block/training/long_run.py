"""Train for as long as it takes: in parts, in several processes, stopped and resumed exactly."""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from transformer_block import checkpoint
from transformer_block.language.known import Batch
from transformer_block.language_model import LanguageModel
from transformer_block.training import states
from transformer_block.training.loop import _refuse_non_finite, fill, next_token_loss
from transformer_block.training.plan import Plan
from transformer_block.training.processes import World, placed_as, share, summed, whole
from transformer_block.training.states import State
from transformer_block.training.texts import TOKENIZER, Data, open_data, prepare

MODEL, LOSSES, PICTURE = "model.safetensors", "losses.csv", "loss.svg"  # of a run's folder


@dataclass
class LongRun:
    """Hold what a long training has come to."""

    plan: Plan
    data: Data
    step: int  # how many are done
    saved_at: int | None  # the step of the newest checkpoint; None without one
    losses: Float[Tensor, "step 2"]  # loss in nats per token, and length of the gradient
    judged: Float[Tensor, "times 2"]  # step and the data's measure
    model: LanguageModel | None  # on the CPU of rank 0, once all steps are done


@dataclass
class Progress:
    """Say how far it is."""

    step: int
    loss: float  # mean since the last line, in nats per token
    measure: str  # what the data are judged by
    judged: float  # that, when last taken; NaN before
    tokens_per_second: float
    seconds_left: float


@dataclass
class Listener:
    """What wants to know of a run: nothing, unless told otherwise."""

    on_progress: Callable[[Progress], None] = lambda progress: None
    on_word: Callable[[str], None] = lambda words: None


def run_plan(
    plan: Plan,
    folder: Path,
    world: World | None = None,
    *,
    fresh: bool = False,
    listener: Listener | None = None,
) -> LongRun:
    """Train as planned, in a folder; go on where an earlier run of the same plan has stopped.

    Every `save_every` steps the state is written there, and when the user asks it to stop
    (SIGINT or SIGTERM); what follows after a resume is what would have followed anyway, bit for
    bit. At the end there are the model, for `transformer_block.load`, and the losses.

    Raises:
        ValueError: if the folder holds a run of another plan, another run is at work there, the
            data do not fit, or the loss stops being a number.
        OSError: if the folder, or at the end the model, cannot be written.
    """
    world, listener = world or World(), listener or Listener()
    if not world.first:
        listener = Listener()
    with ExitStack() as at_the_end:
        world.first_does(lambda: at_the_end.enter_context(_opened(plan, folder, fresh, listener)))
        data = open_data(plan, folder)
        state, faults = states.newest(folder)
        for fault in faults:
            listener.on_word(f"{fault}; going on from an older one")
        if state is not None:
            _refuse_other(plan, data, state, folder)
        return _Training(plan, folder, world, listener, data, state).run()


@contextmanager
def _opened(plan: Plan, folder: Path, fresh: bool, listener: Listener) -> Iterator[None]:
    """Hold a folder for one run, and make it ready."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", blocking=False):
            if fresh and (moved := _put_aside(folder)):
                listener.on_word(f"the earlier run now lies in {moved}")
            prepare(plan, folder)
            yield
    except Timeout as error:
        raise ValueError(
            f"another run is at work in {folder}; wait for it, or take another folder"
        ) from error


def _put_aside(folder: Path) -> Path | None:
    """Move a run's files into a new folder beneath; nothing is overwritten."""
    ours = [folder / name for name in (MODEL, LOSSES, PICTURE, TOKENIZER)]
    there = [path for path in [*ours, *states.stored(folder)] if path.exists()]
    if not there:
        return None
    number = 1
    while (aside := folder / f"earlier-{number}").exists():
        number += 1
    aside.mkdir()
    for path in there:
        path.replace(aside / path.name)
    return aside


def _refuse_other(plan: Plan, data: Data, state: State, folder: Path) -> None:
    differences = plan.differences(state.plan)
    if not differences and data.digest != state.digest:
        differences = ["what is read has changed since"]
    if differences:
        raise ValueError(
            f"the checkpoint of step {state.step} in {folder} belongs to another plan: "
            f"{'; '.join(differences)}; resume with the same plan, take another folder, "
            "or begin again with --fresh"
        )


def weight_of_part(counted_here: int, counted_in_all: int) -> float:
    """Return what a part's mean loss contributes to the batch's mean: its share of the tokens.

    Parts have unequal numbers of tokens that count (a sentence is short or long), so the mean of
    their means is not the mean.
    """
    return counted_here / counted_in_all


def parts_of(batch: Batch, rows: int, world: World) -> list[tuple[Tensor, Tensor, float]]:
    """Return this process's parts of a batch: ids, what counts, and the weight of each."""
    in_all = _counted(batch.counts)
    ids, counts = torch.split(batch.ids, rows), torch.split(batch.counts, rows)
    mine = range(world.rank, len(ids), world.size)
    return [(ids[i], counts[i], weight_of_part(_counted(counts[i]), in_all)) for i in mine]


def _counted(counts: Tensor) -> int:
    return int(counts[:, 1:].sum())  # the first token is predicted by none


class _Training:
    """Hold what changes while a run goes on."""

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        world: World,
        listener: Listener,
        data: Data,
        state: State | None,
    ) -> None:
        self.plan, self.folder, self.world, self.data = plan, folder, world, data
        self.listener, self.recipe = listener, plan.recipe()
        self.rows = plan.rows(world.size)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(plan.seed)
            self.model = LanguageModel(plan.config(data.vocab_size))
        self.step = 0
        self.losses = torch.zeros(0, 2)
        self.judged = torch.zeros(0, 2, dtype=torch.float64)
        if state is not None:
            self.step, self.losses, self.judged = state.step, state.losses, state.judged
            fill(self.model, state.weights)
        self.saved_at = self.step if state is not None else None
        self.model.to(world.device)
        shared = share(self.model, world, plan.parallel)
        self.shared = shared
        self.called: Callable[..., Tensor] = torch.compile(shared) if plan.compile else shared
        self.names, learning = zip(*self.model.named_parameters(), strict=True)
        self.learning: tuple[nn.Parameter, ...] = learning
        self.optimiser = torch.optim.AdamW(
            learning,
            lr=plan.lr,
            betas=plan.betas,
            weight_decay=plan.weight_decay,
            fused=True,
        )
        if state is not None:
            self._fill_moments(state)
        self.pending: list[Tensor] = []  # [loss, gradient] of steps, still on the device
        self.reported_at = self.step

    def _fill_moments(self, state: State) -> None:
        all_of_it = self.optimiser.state_dict()
        all_of_it["state"] = {
            i: {
                "step": torch.tensor(float(state.step)),
                "exp_avg": placed_as(state.first_moments[name], self.learning[i]),
                "exp_avg_sq": placed_as(state.second_moments[name], self.learning[i]),
            }
            for i, name in enumerate(self.names)
        }
        self.optimiser.load_state_dict(all_of_it)

    def run(self) -> LongRun:
        """Do the steps that are left, or as many as one is let."""
        plan = self.plan
        if self.step:
            self.listener.on_word(f"going on after step {self.step} of {plan.steps}")
        began, at_first, tokens, last = time.monotonic(), self.step, 0, False
        self.model.train()
        with _asked_to_stop() as asked:
            while self.step < plan.steps and not last:
                tokens += self._one_step()
                last = self.world.any(bool(asked)) or self.step == plan.steps
                if self.step == plan.steps or self.step % plan.judge_every == 0:
                    self._judge()
                if last or self.step % plan.report_every == 0:
                    self._report(time.monotonic() - began, self.step - at_first, tokens)
                if last or self.step % plan.save_every == 0:
                    self._save()
        model = self._finish() if self.step == plan.steps else None
        return LongRun(plan, self.data, self.step, self.saved_at, self.losses, self.judged, model)

    def _one_step(self) -> int:
        """Forward, loss, backward, step; return how many tokens were predicted, over all."""
        batch = self.data.batch(self.step, self.plan)
        self.optimiser.param_groups[0]["lr"] = self.recipe.lr_at(self.step)
        self.optimiser.zero_grad()
        total = torch.zeros((), device=self.world.device)
        parts = parts_of(batch, self.rows, self.world)
        for i, (ids, counts, weight) in enumerate(parts):
            ids, counts = ids.to(self.world.device), counts.to(self.world.device)
            with summed(self.shared, last=i == len(parts) - 1):
                with self._autocast():
                    loss = weight * next_token_loss(self.called(ids), ids, counts)
                # DDP and FSDP take the mean over the processes; the weights are made for a sum.
                (loss * self.world.size).backward()  # type: ignore[no-untyped-call]  # torch's
            total += loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(self.learning, self.recipe.clip)
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        self.optimiser.step()
        self.pending.append(torch.stack([total, norm]))
        self.step += 1
        return _counted(batch.counts)

    def _autocast(self) -> Any:
        """Compute in bfloat16 where that was asked for, or where a GPU has it."""
        kind = self.world.device.type
        half = self.plan.precision == "bf16"
        if self.plan.precision == "auto":
            half = kind == "cuda" and torch.cuda.is_bf16_supported()
        return torch.autocast(kind, torch.bfloat16) if half else nullcontext()

    def _read_pending(self) -> float:
        """Bring the losses since the last time from the device, and return the mean of the new."""
        if self.pending:
            new = torch.stack(self.pending)
            new[:, 0] = self.world.sum(new[:, 0].contiguous())
            self.pending.clear()
            new = new.cpu()
            for i, (loss, norm) in enumerate(new):
                _refuse_non_finite(loss, norm, len(self.losses) + i)
            self.losses = torch.cat([self.losses, new])
        return float(self.losses[self.reported_at :, 0].mean())

    def _report(self, seconds: float, steps: int, tokens: int) -> None:
        """Say how far it is: what these steps took says what the others will take."""
        loss, self.reported_at = self._read_pending(), self.step
        judged = float(self.judged[-1, 1]) if len(self.judged) else math.nan
        left = seconds / steps * (self.plan.steps - self.step)
        self.listener.on_progress(
            Progress(self.step, loss, self.data.measure, judged, tokens / seconds, left)
        )

    def _judge(self) -> None:
        with self._autocast():
            found = self.data.judge(self.model, self.rows)
        new = torch.tensor([[self.step, found]], dtype=torch.float64)
        self.judged = torch.cat([self.judged, new])

    def _save(self) -> None:
        """Write the state; where it cannot be written, say so and go on with what is in memory."""
        self._read_pending()
        moments = [self.optimiser.state[p] for p in self.learning]
        state = State(
            self.plan,
            self.data.digest,
            self.step,
            self._gathered(self.learning),
            self._gathered(m["exp_avg"] for m in moments),
            self._gathered(m["exp_avg_sq"] for m in moments),
            self.losses,
            self.judged,
        )
        if not self.world.first:
            return
        try:
            states.write(state, self.folder)
            self.saved_at = self.step
            states.write_whole(self.folder / LOSSES, self._table())
        except OSError as error:
            stands = "none" if self.saved_at is None else f"that of step {self.saved_at}"
            self.listener.on_word(
                f"the checkpoint of step {self.step} could not be written "
                f"({error.strerror or error}); {stands} stands in {self.folder}"
            )

    def _gathered(self, tensors: Iterable[Tensor]) -> dict[str, Tensor]:
        """Return the tensors in full by their weight's name, where they will be written."""
        found = {}
        for name, tensor in zip(self.names, tensors, strict=True):
            full = whole(tensor)  # by all together, one at a time
            if self.world.first:
                found[name] = full
        return found

    def _table(self) -> bytes:
        """Return the losses as lines of comma-separated values."""
        judged = {int(step): value for step, value in self.judged.tolist()}
        lines = [f"step,loss,grad_norm,{self.data.measure}"]
        for step, (loss, norm) in enumerate(self.losses.tolist(), 1):
            last = f"{judged[step]:.9g}" if step in judged else ""
            lines.append(f"{step},{loss:.9g},{norm:.9g},{last}")
        return "\n".join([*lines, ""]).encode()

    def _finish(self) -> LanguageModel | None:
        """Put the model together and write it, on rank 0."""
        weights = self._gathered(self.learning)
        if not self.world.first:
            return None
        with torch.random.fork_rng(devices=[]):  # the first weights are drawn only to be replaced
            model = LanguageModel(self.model.config)
        fill(model, weights)
        try:
            checkpoint.save(model, self.folder / MODEL)
        except OSError as error:
            raise OSError(
                f"all {self.step} steps are done, but the model could not be written "
                f"({error.strerror or error}); make room and give the same command again"
            ) from error
        return model.eval()


@contextmanager
def _asked_to_stop() -> Iterator[list[int]]:
    """Note SIGINT and SIGTERM instead of dying at once; a second SIGINT is not waited for."""
    asked: list[int] = []

    def note(number: int, frame: object) -> None:
        if number in asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.append(number)

    if threading.current_thread() is not threading.main_thread():  # only that one gets signals
        yield asked
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
