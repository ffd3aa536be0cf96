"""A language of repeated sequences: its second half is certain for whoever looks back."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from transformer_block import _checks
from transformer_block.language.known import Batch


class RepeatScore(NamedTuple):
    """Say how well a model continues what it has seen once."""

    loss: float  # nats per token that is certain; the least possible is 0
    right: float  # share of these tokens that are the model's first choice


@dataclass(frozen=True)
class RepeatLanguage:
    """Draw a few different symbols in a random order, and say them again and again.

    The period, from `shortest` to `longest`, is drawn evenly, then that many of `n_symbols`
    symbols in a random order; they are repeated up to `n` tokens. Symbols are the ids
    0 … n_symbols − 1; there is no padding, and no mark at the beginning.

    Whoever has seen one symbol come back knows all that follows: the present symbol's successor
    is what followed it before. Those tokens are *certain*. Everything else is known exactly, too:
    `next_token_distribution` and `entropy_bound`.

    Raises:
        ValueError: for periods that do not fit into the symbols or the length.
    """

    n_symbols: int = 16
    n: int = 32
    shortest: int = 4
    longest: int = 12

    def __post_init__(self) -> None:
        """Check that every period can be drawn and is seen to come back."""
        if not 2 <= self.shortest <= self.longest <= self.n_symbols or self.longest >= self.n:
            raise ValueError(
                "2 <= shortest <= longest <= n_symbols and longest < n must hold; got shortest "
                f"{self.shortest}, longest {self.longest}, n_symbols {self.n_symbols}, n {self.n}"
            )

    @property
    def periods(self) -> range:
        """All lengths after which a sequence may begin again."""
        return range(self.shortest, self.longest + 1)

    def next_token_distribution(self, prefix: Sequence[int]) -> list[float]:
        """Return the exact probability of each symbol after these.

        As long as all symbols differ, the period may be over (then the first one comes back) or
        not (then any new one may come); after that the sequence is fixed.

        Raises:
            ValueError: if no sequence begins so, or it is complete.

        >>> tiny = RepeatLanguage(n_symbols=4, n=7, shortest=2, longest=3)
        >>> tiny.next_token_distribution([3, 1])
        [0.25, 0.0, 0.25, 0.5]
        >>> tiny.next_token_distribution([3, 1, 3])
        [0.0, 1.0, 0.0, 0.0]
        """
        seen = [int(i) for i in prefix]
        period = next((i for i in range(1, len(seen)) if seen[i] in seen[:i]), None)
        known = seen[:period]
        fits = len(seen) < self.n and set(seen) <= set(range(self.n_symbols))
        if period is None:
            fits = fits and len(seen) <= self.longest
        else:
            fits = fits and period in self.periods
            fits = fits and all(seen[i] == known[i % period] for i in range(len(seen)))
        if not fits:
            raise ValueError(f"no sequence of this language begins with {seen} and goes on")
        p = [0.0] * self.n_symbols
        if period is not None:
            p[known[len(seen) % period]] = 1.0
            return p
        still_open = [length for length in self.periods if length >= len(seen)]
        over = (len(seen) in still_open) / len(still_open)
        for symbol in set(range(self.n_symbols)) - set(seen):
            p[symbol] = (1 - over) / (self.n_symbols - len(seen))
        if over:
            p[known[0]] = over
        return p

    @property
    def entropy_bound(self) -> float:
        """The least loss of any model, in nats per predicted token: all of them but the first."""
        orders = [
            math.lgamma(self.n_symbols + 1) - math.lgamma(self.n_symbols - period + 1)
            for period in self.periods
        ]
        H = math.log(len(self.periods)) + math.fsum(orders) / len(self.periods)
        return (H - math.log(self.n_symbols)) / (self.n - 1)

    def certain(self, ids: Int[Tensor, "B n"]) -> Bool[Tensor, "B n"]:
        """Say which tokens are certain before they come: those after the first that came back."""
        again = (ids[:, :, None] == ids[:, None, :]).tril(diagonal=-1).any(dim=-1)
        return (again.cumsum(dim=1) - again.long()) > 0

    def sample(self, n_sequences: int, generator: torch.Generator) -> Batch:
        """Return sequences as one batch."""
        return next(self.batches(1, n_sequences, generator))

    def batches(
        self, n_batches: int, batch_size: int, generator: torch.Generator
    ) -> Iterator[Batch]:
        """Yield batches of whole sequences, each token of which counts.

        Raises:
            ValueError: for sizes below 1.
        """
        _checks.positive(n_batches=n_batches, batch_size=batch_size)
        return (self._draw(batch_size, generator) for _ in range(n_batches))

    def _draw(self, batch_size: int, generator: torch.Generator) -> Batch:
        drawn = torch.rand(batch_size, self.n_symbols, generator=generator)
        order = drawn.argsort(dim=1)
        period = torch.randint(
            self.shortest, self.longest + 1, (batch_size, 1), generator=generator
        )
        ids = order.gather(1, torch.arange(self.n).expand(batch_size, -1) % period)
        return Batch(ids, torch.ones_like(ids, dtype=torch.bool))

    @torch.no_grad()
    def evaluate(self, model: nn.Module, ids: Int[Tensor, "B n"]) -> RepeatScore:
        """Score a model on the certain tokens of these sequences, such as those of `sample`.

        What it should say is known exactly, so that its loss there *is* its excess.

        Raises:
            ValueError: if no token of `ids` is certain.
        """
        counts = self.certain(ids)[:, 1:]
        if not counts.any():
            raise ValueError(f"nothing comes back in ids of shape {list(ids.shape)}; take longer")
        log_q = model(ids)[:, :-1][counts].double().log_softmax(dim=-1)
        targets = ids[:, 1:][counts]
        loss = -log_q.gather(1, targets[:, None]).mean()
        return RepeatScore(float(loss), float((log_q.argmax(dim=-1) == targets).double().mean()))
