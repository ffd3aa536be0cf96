"""What a long training reads: the toy language, or a text of the reader's own."""

import hashlib
import math
import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor, nn

from transformer_block.generation import generate
from transformer_block.language import ToyLanguage, join, toy_language
from transformer_block.language.known import BOS, Batch
from transformer_block.language_model import LanguageModel
from transformer_block.training.loop import next_token_loss
from transformer_block.training.plan import Plan

TOKENIZER = "tokenizer.json"  # of a run's folder


@runtime_checkable
class Data(Protocol):
    """Anything a long training can read, and judge a model by."""

    @property
    def measure(self) -> str:
        """What `judge` returns, in nats per token."""
        ...

    @property
    def floor(self) -> float:
        """The least possible loss, in nats per token; NaN if nobody knows it."""
        ...

    @property
    def vocab_size(self) -> int:
        """How many tokens there are."""
        ...

    @property
    def digest(self) -> str:
        """A text that changes when what is read does."""
        ...

    def batch(self, step: int, plan: Plan) -> Batch:
        """Return the batch of a step: the same one whoever asks, and whenever."""
        ...

    def judge(self, model: nn.Module, rows: int) -> float:
        """Judge a model on what it was not trained on, `rows` at a time."""
        ...

    def sample(self, model: LanguageModel, seed: int) -> str:
        """Let a model speak."""
        ...


def drawn_by(seed: int, step: int) -> torch.Generator:
    """Return the generator of one step's batch.

    It depends on the seed and the step alone: a run that is resumed, or shared by several
    processes, needs no memory of what was drawn before.
    """
    mixed = hashlib.sha256(f"{seed} {step}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(mixed[:7]))


@dataclass
class ToyData:
    """Read the toy language, and judge by the exact excess over its entropy."""

    language: ToyLanguage = field(default_factory=toy_language)
    measure: str = "excess"

    @property
    def floor(self) -> float:
        """The entropy, in nats per token."""
        return self.language.entropy_bound

    @property
    def vocab_size(self) -> int:
        """How many words there are, with the two marks."""
        return len(self.language.vocabulary)

    @cached_property
    def digest(self) -> str:
        """A text that changes when any sentence or probability does."""
        said = repr((self.language.vocabulary, list(self.language.sentences.items())))
        return hashlib.sha256(said.encode()).hexdigest()

    def batch(self, step: int, plan: Plan) -> Batch:
        """Return whole sentences, drawn by their probability."""
        return self.language.sample(plan.batch_size, drawn_by(plan.seed, step))

    def judge(self, model: nn.Module, rows: int) -> float:
        """Return the excess over all sentences, in nats per token."""
        return self.language.evaluate(model).excess

    def sample(self, model: LanguageModel, seed: int) -> str:
        """Return one sentence, as the model would say it."""
        begun = torch.tensor([[self.language.id_of[BOS]]])
        n_new = model.config.n_ctx - 1
        ids = generate(model, begun, n_new, generator=drawn_by(seed, -1))[0, 1:].tolist()
        words = [self.language.vocabulary[i] for i in ids]
        ends = [i for i, word in enumerate(words) if word in (".", "。")]
        return join(words[: ends[0] + 1] if ends else words)


@runtime_checkable
class Tokenizer(Protocol):
    """Anything that turns a text into ids and back."""

    vocab_size: int

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        ...

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids."""
        ...


class ByteTokenizer:
    """Take each byte of the UTF-8 text as a token: 256 of them, whatever the language.

    >>> ByteTokenizer().encode("né")
    [110, 195, 169]
    """

    vocab_size = 256

    def encode(self, text: str) -> list[int]:
        """Return the bytes."""
        return list(text.encode("utf-8"))

    def decode(self, ids: list[int]) -> str:
        """Return the text; bytes that are none (half a character) become U+FFFD."""
        return bytes(ids).decode("utf-8", errors="replace")


class PairTokenizer:
    """Merge the pairs of bytes that come together most often, by the `tokenizers` library.

    Raises:
        ValueError: if the library is not there, or the file is none of its own.

    Source: Sennrich et al. (2016), section 3.2, on bytes as in Radford et al. (2019), section 2.2.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._inner = _library().Tokenizer.from_str(path.read_text("utf-8"))
        except OSError:
            raise
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f"{path} holds no tokenizer ({error})") from error
        self.vocab_size: int = self._inner.get_vocab_size()

    @staticmethod
    def learn(text: str, vocab_size: int, path: Path) -> None:
        """Learn the merges from a text and keep them in a file, whole or not at all."""
        library = _library()
        inner = library.Tokenizer(library.models.BPE())
        inner.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = library.decoders.ByteLevel()
        trainer = library.trainers.BpeTrainer(
            vocab_size=vocab_size,
            initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        inner.train_from_iterator([text], trainer)
        part = path.with_suffix(".part")
        try:
            part.write_text(inner.to_str(), "utf-8")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        return self._inner.encode(text).ids

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids."""
        return self._inner.decode(ids)


def _library() -> Any:
    try:
        import tokenizers
        import tokenizers.decoders
        import tokenizers.models
        import tokenizers.pre_tokenizers
        import tokenizers.trainers
    except ImportError as error:
        raise ValueError(
            "tokenizer = 'bpe' needs the tokenizers library: pip install tokenizers; "
            "tokenizer = 'byte' needs nothing"
        ) from error
    return tokenizers


@dataclass
class TextData:
    """Read windows of n_ctx tokens of one text, and judge on its end, which is never read.

    Raises:
        ValueError: if the text, or the end that is held out, is shorter than a window.
    """

    tokenizer: Tokenizer
    read: Int[Tensor, " n_read"]
    held_out: Int[Tensor, " n_held_out"]
    n_ctx: int
    digest: str
    measure: str = "held-out loss"
    floor: float = math.nan

    def __post_init__(self) -> None:
        """Check that there is a window to read, and one to judge on unless none is wanted."""
        for what, tokens in (("to read", self.read), ("held out", self.held_out)):
            if len(tokens) < self.n_ctx and (what == "to read" or len(tokens)):
                raise ValueError(
                    f"a window is n_ctx = {self.n_ctx} tokens long, but the text has "
                    f"{len(self.read)} tokens to read and {len(self.held_out)} held out; "
                    f"take a longer text, n_ctx ≤ {len(tokens)}, or another held_out (0: none)"
                )

    @property
    def vocab_size(self) -> int:
        """How many tokens the tokenizer has."""
        return self.tokenizer.vocab_size

    def windows(self, tokens: Tensor, starts: Tensor) -> Batch:
        """Return the windows that begin at these places."""
        ids = tokens[starts[:, None] + torch.arange(self.n_ctx)].long()
        return Batch(ids, torch.ones_like(ids, dtype=torch.bool))

    def batch(self, step: int, plan: Plan) -> Batch:
        """Return windows from anywhere in the part that is read."""
        places = len(self.read) - self.n_ctx + 1
        starts = torch.randint(places, (plan.batch_size,), generator=drawn_by(plan.seed, step))
        return self.windows(self.read, starts)

    @torch.no_grad()
    def judge(self, model: nn.Module, rows: int, most: int = 256) -> float:
        """Return the mean loss over evenly spaced windows of the end, in nats per token."""
        if not len(self.held_out):
            return math.nan
        n = min(most, len(self.held_out) // self.n_ctx)
        starts = torch.linspace(0, len(self.held_out) - self.n_ctx, n).long()
        device = next(model.parameters()).device
        total = 0.0
        for some in torch.split(starts, rows):
            ids = self.windows(self.held_out, some).ids.to(device)
            total += float(next_token_loss(model(ids), ids)) * len(ids)
        return total / n

    def sample(self, model: LanguageModel, seed: int) -> str:
        """Return how the model goes on after the text's beginning."""
        begun = self.read[: max(1, min(16, self.n_ctx // 2))].long()[None]
        ids = generate(model, begun, 64, temperature=0.8, generator=drawn_by(seed, -1))[0].tolist()
        n = begun.shape[1]
        return f"{self.tokenizer.decode(ids[:n])} ⟩ {self.tokenizer.decode(ids[n:])}"


def prepare(plan: Plan, folder: Path) -> None:
    """Learn the tokenizer that a plan asks for, unless the folder holds it already."""
    if plan.text and plan.tokenizer == "bpe" and not (folder / TOKENIZER).is_file():
        text, _ = _read(plan.text)
        reads, _ = _cut(text, plan.held_out)
        PairTokenizer.learn(reads, plan.vocab_size, folder / TOKENIZER)


def open_data(plan: Plan, folder: Path) -> Data:
    """Return what a plan reads; `folder` is where `prepare` has put its tokenizer.

    Raises:
        FileNotFoundError: if there is no such text.
        ValueError: if it is not UTF-8, or too short.
    """
    if not plan.text:
        if plan.n_ctx < (longest := max(map(len, toy_language().sentences)) + 1):
            raise ValueError(
                f"the toy language's longest sentence has {longest} tokens with its mark, "
                f"but n_ctx = {plan.n_ctx}; take n_ctx = {longest} or more"
            )
        return ToyData()
    text, digest = _read(plan.text)
    tokenizer: Tokenizer = ByteTokenizer()
    if plan.tokenizer == "bpe":
        tokenizer = PairTokenizer(folder / TOKENIZER)
        merges = (folder / TOKENIZER).read_bytes()
        digest = hashlib.sha256(digest.encode() + merges).hexdigest()
    # The cut is made in the text: the merges were learnt on the part that is read alone.
    read, held_out = (
        torch.tensor(tokenizer.encode(part), dtype=torch.int32)
        for part in _cut(text, plan.held_out)
    )
    return TextData(tokenizer, read, held_out, plan.n_ctx, digest)


def _read(name: str | os.PathLike[str]) -> tuple[str, str]:
    """Return a text and the digest of its bytes."""
    path = Path(name).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"there is no text at {path}; leave text out for the toy language")
    data = path.read_bytes()
    try:
        return data.decode("utf-8"), hashlib.sha256(data).hexdigest()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8: byte {error.start} is {data[error.start]:#04x}; "
            "save it as UTF-8 first"
        ) from error


def _cut(text: str, held_out: float) -> tuple[str, str]:
    read = len(text) - round(held_out * len(text))
    return text[:read], text[read:]
