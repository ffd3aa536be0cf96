"""What a long training is to do: one flat, checked plan, from flags or from a TOML file."""

import difflib
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from transformer_block import _checks
from transformer_block.config import ModelConfig
from transformer_block.training.loop import STANDARD_RECIPE, Recipe


def _says(words: str, *choices: str) -> dict[str, Any]:
    return {"says": words, "choices": choices}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Say what is read, by which model, how it learns, and how the work is done.

    The names are those of `ModelConfig` and `Recipe`. Fields marked as *how* change the losses by
    rounding at most, so a run may be resumed with others; all the rest decides the result.

    Raises:
        ValueError: naming the field, its value and what it may be.
    """

    text: str = field(
        default="", metadata=_says("UTF-8 file to learn from; none: the toy language")
    )
    tokenizer: str = field(default="byte", metadata=_says("of a text", "byte", "bpe"))
    vocab_size: int = field(default=1024, metadata=_says("tokens of a bpe tokenizer, at most"))
    held_out: float = field(
        default=0.1, metadata=_says("share of the text, its end, that is judged on, not read")
    )

    n_ctx: int = field(default=16, metadata=_says("longest input, in tokens"))
    d_model: int = field(default=64, metadata=_says("features of a token"))
    n_heads: int = field(default=4, metadata=_says("heads of a block"))
    n_layers: int = field(default=2, metadata=_says("blocks"))
    d_ff: int = field(default=0, metadata=_says("hidden neurons of an FFN; 0: 4 d_model"))
    norm: str = field(default="layer", metadata=_says("layer or rms"))
    norm_place: str = field(default="pre", metadata=_says("pre or post"))
    activation: str = field(default="gelu", metadata=_says("the FFN's, or swiglu"))
    tie_weights: bool = field(default=False, metadata=_says("W_LM is E"))
    bias: bool = field(default=False, metadata=_says("give W_Q … W_O biases"))

    steps: int = field(default=STANDARD_RECIPE.steps, metadata=_says("of the optimiser"))
    batch_size: int = field(
        default=STANDARD_RECIPE.batch_size,
        metadata=_says("rows of a step, over all processes and parts"),
    )
    lr: float = field(default=STANDARD_RECIPE.lr, metadata=_says("highest learning rate"))
    betas: tuple[float, float] = field(default=STANDARD_RECIPE.betas, metadata=_says("of AdamW"))
    weight_decay: float = field(default=STANDARD_RECIPE.weight_decay, metadata=_says("of AdamW"))
    warm_up: float = field(default=STANDARD_RECIPE.warm_up, metadata=_says("share of the steps"))
    lr_last: float = field(default=STANDARD_RECIPE.lr_last, metadata=_says("share of lr"))
    clip: float = field(default=STANDARD_RECIPE.clip, metadata=_says("longest gradient; or inf"))
    seed: int = field(default=0, metadata=_says("of the first weights and of the batches"))
    precision: str = field(
        default="auto",
        metadata=_says("auto: bf16 on a GPU that has it", "auto", "float32", "bf16"),
    )

    accumulate: int = field(
        default=1, metadata=_says("how: parts of a batch, one after another, to save memory")
    )
    parallel: str = field(
        default="ddp",
        metadata=_says("how: what several processes share, batches or weights", "ddp", "fsdp"),
    )
    compile: bool = field(default=False, metadata=_says("how: through torch.compile"))
    device: str = field(default="auto", metadata=_says("how", "auto", "cpu", "cuda"))
    report_every: int = field(default=10, metadata=_says("how: steps between lines of progress"))
    judge_every: int = field(default=100, metadata=_says("how: steps between judgements"))
    save_every: int = field(default=100, metadata=_says("how: steps between checkpoints"))

    def __post_init__(self) -> None:
        """Check every field, through the classes that will take it where there is one."""
        for option in fields(self):
            _check_kind(option.name, getattr(self, option.name), option.default)
            choices, value = option.metadata["choices"], getattr(self, option.name)
            if choices and value not in choices:
                raise ValueError(f"{option.name} must be {' or '.join(choices)}, not {value!r}")
        _checks.positive(
            accumulate=self.accumulate,
            report_every=self.report_every,
            judge_every=self.judge_every,
            save_every=self.save_every,
        )
        if self.d_ff < 0 or not 0 <= self.held_out < 1 or not 0 <= self.seed < 2**63:
            raise ValueError(
                "d_ff must be at least 0, held_out a share in 0 … 1 (not 1) and seed in "
                f"0 … 2⁶³−1, not {self.d_ff}, {self.held_out} and {self.seed}"
            )
        if self.tokenizer == "bpe" and self.vocab_size < 257:
            raise ValueError(
                "a bpe tokenizer begins with the 256 bytes, so vocab_size must be at least 257, "
                f"not {self.vocab_size}; tokenizer = 'byte' has these 256 alone"
            )
        self.recipe()
        self.config(vocab_size=2)
        self.rows(processes=1)

    def recipe(self) -> Recipe:
        """Return how the weights learn."""
        return Recipe(**{f.name: getattr(self, f.name) for f in fields(Recipe)})

    def config(self, vocab_size: int) -> ModelConfig:
        """Return the model's sizes, for a vocabulary that the data decide."""
        given = {f.name: getattr(self, f.name) for f in fields(ModelConfig)}
        return ModelConfig(
            **given | {"vocab_size": vocab_size, "d_ff": self.d_ff or 4 * self.d_model}
        )

    def rows(self, processes: int) -> int:
        """Return how many rows one process reads at a time.

        Raises:
            ValueError: if the batch cannot be split evenly.
        """
        parts = processes * self.accumulate
        if self.batch_size % parts:
            raise ValueError(
                f"batch_size must be a multiple of processes × accumulate = {processes} × "
                f"{self.accumulate}; {self.batch_size} leaves {self.batch_size % parts}; try "
                f"{self.batch_size - self.batch_size % parts or parts}"
            )
        return self.batch_size // parts

    def differences(self, earlier: "Plan") -> list[str]:
        """Say in which fields that decide the result this plan differs from an earlier one."""
        return [
            f"{f.name} is {getattr(self, f.name)!r}, there {getattr(earlier, f.name)!r}"
            for f in fields(self)
            if not f.metadata["says"].startswith("how")
            and f.name != "text"  # its content counts, not where it lies
            and getattr(self, f.name) != getattr(earlier, f.name)
        ]


def plan_from(values: Mapping[str, Any], where: str) -> Plan:
    """Make a plan of named values, as they stand in a file.

    Raises:
        ValueError: for a name that is none of a plan's, with the nearest; or a wrong value.
    """
    known = [f.name for f in fields(Plan)]
    for name in values:
        if name not in known:
            raise ValueError(f"{where} names {name!r}, which no plan has; {nearest(name, known)}")
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
    return Plan(**given)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the values that a TOML file names.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not TOML.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no plan at {path}; flags alone will do as well")
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8"))
    except ValueError as error:  # not TOML, or not even UTF-8
        raise ValueError(f"{path} is not TOML: {error}") from error


def nearest(name: str, known: list[str]) -> str:
    """Say which known name was probably meant, or all of them."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"


def _check_kind(name: str, value: object, default: object) -> None:
    """Refuse a value of another kind than the field's default; a whole number is a number."""
    if isinstance(default, tuple):
        fits = isinstance(value, tuple) and len(value) == len(default)
        fits = fits and all(type(v) in (int, float) and 0 <= v < 1 for v in value)  # type: ignore[attr-defined]  # a tuple by now
        kind = "two numbers in 0 … 1 (not 1)"
    elif isinstance(default, float):
        fits = type(value) in (int, float) and not math.isnan(value)  # type: ignore[arg-type]  # a number by now
        kind = "a number"
    else:
        fits = type(value) is type(default)
        kind = {bool: "true or false", int: "a whole number", str: "a text"}[type(default)]
    if not fits:
        raise ValueError(f"{name} must be {kind}, not {value!r}")
