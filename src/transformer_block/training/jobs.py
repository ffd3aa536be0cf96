"""Trainings by description: what is trained on what, from which seed, for how long."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from transformer_block.ablation import freeze_all_but, without
from transformer_block.config import ModelConfig
from transformer_block.fingerprint import fingerprint
from transformer_block.language import ToyLanguage, toy_language
from transformer_block.language_model import LanguageModel
from transformer_block.training.loop import STANDARD_RECIPE, Recipe, TrainingRun, one_thread, train


def toy_config(**changes: object) -> ModelConfig:
    """Return the standard model of the toy language, with these fields changed.

    >>> toy_config(n_heads=1).d_head
    64
    """
    sizes = {"n_ctx": 16, "d_model": 64, "n_heads": 4, "n_layers": 2, "d_ff": 256}
    return ModelConfig(**{"vocab_size": len(toy_language().vocabulary), **sizes, **changes})  # type: ignore[arg-type]  # checked by ModelConfig


@dataclass(frozen=True, kw_only=True)
class Job:
    """Describe one training on the toy language, from the draw of the weights to the last step.

    `without` is a part that `ablation.without` takes out; `only` the parts that may learn
    (`ablation.freeze_all_but`); `families` those of the language that are trained on: all, where
    these are empty. `corpus` is the size of a finite corpus, drawn with `seed`, that takes the
    language's place.
    """

    config: ModelConfig = field(default_factory=toy_config)
    seed: int
    recipe: Recipe = STANDARD_RECIPE
    without: str | None = None
    only: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    corpus: int | None = None
    keep_at: tuple[int, ...] = ()

    def model(self) -> LanguageModel:
        """Return the untrained model; torch's global random state is left as it was."""
        with plain_torch(), torch.random.fork_rng(devices=[]):
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
        """Train, whatever is on disk and whatever torch is set to."""
        with plain_torch():
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
        """A digest of all that decides the weights and that `plain_torch` does not hold."""
        facts = [
            json.dumps(asdict(self), sort_keys=True),
            fingerprint("transformer_block.training.jobs.Job"),
            torch.__version__,
            torch.backends.cpu.get_cpu_capability(),
            _matmul_precision(),
        ]
        return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:24]


_ALONE = threading.RLock()  # torch is set for all threads at once


@contextmanager
def plain_torch() -> Iterator[None]:
    """Set what decides torch's numbers to its defaults on one thread; put all back afterwards."""
    with _ALONE, ExitStack() as back:
        back.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float32)
        back.callback(torch.set_flush_denormal, _flushes_denormals())
        torch.set_flush_denormal(False)
        if torch.get_default_device().type != "cpu":  # else the context would only slow us down
            back.enter_context(torch.device("cpu"))
        back.enter_context(one_thread())
        back.enter_context(sdpa_kernel(list(SDPBackend.__members__.values())))
        back.enter_context(torch.inference_mode(False))
        back.enter_context(torch.enable_grad())
        back.enter_context(torch.autocast("cpu", enabled=False))
        yield


def _flushes_denormals() -> bool:
    return float(torch.tensor(1e-40, dtype=torch.float32, device="cpu") * 1.0) == 0.0


def _matmul_precision() -> str:
    """Return how exact products are; torch has two interfaces to it, which cannot be mixed."""
    matmul = getattr(torch.backends.mkldnn, "matmul", None)
    said = getattr(matmul, "fp32_precision", None) or torch.get_float32_matmul_precision()
    return "full" if said in ("none", "ieee", "highest") else said
