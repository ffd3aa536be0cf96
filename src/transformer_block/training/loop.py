"""One readable training loop: forward, loss, backward, step."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from transformer_block import _checks
from transformer_block.language.known import Batch
from transformer_block.language_model import LanguageModel

IGNORE = -100  # what F.cross_entropy leaves out


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


STANDARD_RECIPE = Recipe()


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
        """Return a new model, as this one was before that step (one of `keep_at`).

        Raises:
            ValueError: naming the steps that were kept.
        """
        if step not in self.snapshots:
            raise ValueError(f"kept were the steps {sorted(self.snapshots)}, not {step}")
        model = deepcopy(self.model)
        fill(model, self.snapshots[step])
        return model


def next_token_loss(
    logits: Float[Tensor, "B n vocab_size"],
    ids: Integer[Tensor, "B n"],
    counts: Bool[Tensor, "B n"] | None = None,
) -> Float[Tensor, ""]:
    """Score the prediction at position t against the token at t+1, in nats per token.

    loss = −mean log softmax(logits[t])[ids[t+1]]. The shift is made here and nowhere else.
    `counts` says which tokens are to be predicted (True); all of them unless given.

    Raises:
        ValueError: for ids that the model would refuse, or if no token is left to predict: a mean
            over nothing is not a number.
    """
    ids = _checks.ids(ids, logits.shape[-1])
    targets = F.pad(ids[:, 1:], (0, 1), value=IGNORE)
    if counts is not None:
        targets = targets.where(F.pad(counts[:, 1:], (0, 1), value=False), IGNORE)
    if _checks.known(targets.eq(IGNORE).all()):
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
    recipe: Recipe = STANDARD_RECIPE,
    keep_at: Sequence[int] = (),
    on_step: Callable[[int, float], None] | None = None,
) -> TrainingRun:
    """Train a model in place: forward, loss, backward, step.

    The batches depend on `seed` alone, and no random number is drawn from torch's global state.
    Torch uses one thread meanwhile, so that the result does not depend on the number of cores, and
    follows gradients, also where the caller has turned them off.
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
    with one_thread(), torch.inference_mode(False), torch.enable_grad():
        for step, (ids, counts) in enumerate(batches):
            if step in keep_at:
                run.snapshots[step] = weights_of(model)
            optimiser.param_groups[0]["lr"] = recipe.lr_at(step)
            ids, counts = ids.to(device), counts.to(device)
            loss = next_token_loss(model(ids), ids, counts)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            run.losses[step] = loss.detach()
            run.grad_norms[step] = torch.nn.utils.clip_grad_norm_(learning, recipe.clip)
            _refuse_non_finite(run.losses[step], run.grad_norms[step], step)
            optimiser.step()
            if on_step is not None:
                on_step(step, float(run.losses[step]))
        if recipe.steps in keep_at:
            run.snapshots[recipe.steps] = weights_of(model)
    model.eval()
    return run


def _refuse_non_finite(loss: Tensor, grad_norm: Tensor, step: int) -> None:
    if not math.isfinite(float(loss) + float(grad_norm)):
        raise ValueError(
            f"training broke at step {step}: the loss is {float(loss)}, the gradient "
            f"{float(grad_norm)}; lower lr, clip the gradient, or warm up for longer"
        )


def weights_of(model: LanguageModel) -> dict[str, Tensor]:
    """Return a copy of every parameter; a tied one once."""
    return {name: p.detach().cpu().clone() for name, p in model.named_parameters()}


@torch.no_grad()
def fill(model: LanguageModel, weights: dict[str, Tensor]) -> None:
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
