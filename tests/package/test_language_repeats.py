import math
from collections import Counter
from itertools import permutations

import pytest
import torch
from torch import nn

from transformer_block.config import ModelConfig
from transformer_block.language import RepeatLanguage
from transformer_block.language_model import LanguageModel
from transformer_block.training import Recipe, Source, train

TINY = RepeatLanguage(n_symbols=4, n=7, shortest=2, longest=3)


def every(language):
    """Each sequence of a small language with its probability."""
    found = {}
    for period in language.periods:
        orders = list(permutations(range(language.n_symbols), period))
        for order in orders:
            ids = tuple(order[i % period] for i in range(language.n))
            found[ids] = 1 / len(language.periods) / len(orders)
    return found


class Knows(nn.Module):
    """Predict exactly what the language says, or that with the symbols moved on by one."""

    def __init__(self, language, moved=0):
        super().__init__()
        self.language, self.moved = language, moved

    def forward(self, ids):
        p = [
            [self.language.next_token_distribution(row[: t + 1]) for t in range(len(row) - 1)]
            for row in ids.tolist()
        ]
        nothing = torch.zeros(len(ids), 1, self.language.n_symbols)
        return torch.cat([torch.tensor(p).roll(self.moved, dims=-1), nothing], dim=1).log()


def test_the_distribution_is_the_sum_over_all_sequences():
    whole = every(TINY)
    assert math.fsum(whole.values()) == pytest.approx(1)
    for ids in list(whole)[::5]:
        for t in range(1, TINY.n):
            mass = Counter()
            for other, p in whole.items():
                if other[:t] == ids[:t]:
                    mass[other[t]] += p
            total = sum(mass.values())
            expected = [mass[symbol] / total for symbol in range(TINY.n_symbols)]
            assert TINY.next_token_distribution(ids[:t]) == pytest.approx(expected)


def test_the_bound_is_the_entropy_of_what_is_predicted():
    whole = every(TINY)
    H = math.fsum(-p * math.log(p) for p in whole.values())
    assert TINY.entropy_bound == pytest.approx((H - math.log(4)) / 6)


def test_the_first_symbol_that_comes_back_is_not_certain_and_the_next_is():
    ids = torch.tensor([[3, 1, 2, 3, 1, 2, 3], [0, 2, 0, 2, 0, 2, 0]])
    assert TINY.certain(ids).int().tolist() == [[0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1]]
    for row, sure in zip(ids.tolist(), TINY.certain(ids).tolist(), strict=True):
        known = [max(TINY.next_token_distribution(row[:t])) == 1 for t in range(1, 7)]
        assert all(k for k, s in zip(known, sure[1:], strict=True) if s)


def test_sequences_are_drawn_evenly_and_repeat():
    ids, counts = RepeatLanguage().sample(4000, torch.Generator().manual_seed(3))
    assert counts.all()
    assert ids.shape == (4000, 32)
    period = torch.tensor([row.index(row[0], 1) for row in ids.tolist()])
    assert set(period.tolist()) == set(range(4, 13))
    assert (period.bincount()[4:] - 4000 / 9).abs().max() < 90
    rows = torch.arange(4000)
    for t in range(12, 32):
        assert torch.equal(ids[rows, t], ids[rows, t - period])
    assert (ids[:, 0].bincount(minlength=16) - 250).abs().max() < 70
    assert all(len(set(r[:p])) == p for r, p in zip(ids.tolist(), period.tolist(), strict=True))


def test_the_same_generator_gives_the_same_batches():
    one, two = (
        [b.ids for b in TINY.batches(3, 5, torch.Generator().manual_seed(1))] for _ in range(2)
    )
    assert len(one) == 3
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert not torch.equal(one[0], one[1])


def test_who_knows_the_language_loses_nothing_and_who_is_one_off_is_never_right():
    ids = torch.tensor(list(every(TINY)))
    assert TINY.evaluate(Knows(TINY), ids) == pytest.approx((0, 1))
    loss, right = TINY.evaluate(Knows(TINY, moved=1), ids)
    assert (loss, right) == (math.inf, 0)


def test_an_even_guess_costs_the_logarithm_of_the_symbols():
    class Even(nn.Module):
        def forward(self, ids):
            return torch.zeros(*ids.shape, 4)

    ids = TINY.sample(9, torch.Generator().manual_seed(2)).ids
    assert TINY.evaluate(Even(), ids).loss == pytest.approx(math.log(4))


def test_a_model_can_be_trained_on_it():
    assert isinstance(TINY, Source)
    torch.manual_seed(1)
    sizes = {"d_model": 12, "n_heads": 3, "n_layers": 2, "d_ff": 20}
    model = LanguageModel(ModelConfig(vocab_size=4, n_ctx=7, **sizes))
    run = train(model, TINY, seed=1, recipe=Recipe(steps=3, batch_size=5))
    assert run.losses.isfinite().all()


@pytest.mark.parametrize("sizes", [{"longest": 17}, {"shortest": 13}, {"n": 12}, {"shortest": 1}])
def test_periods_that_do_not_fit_are_refused(sizes):
    with pytest.raises(ValueError, match="shortest <= longest <= n_symbols and longest < n"):
        RepeatLanguage(**sizes)


@pytest.mark.parametrize(
    "prefix", [[0, 0], [0, 1, 2, 3], [0, 1, 0, 2], [4], [0, 1] * 3 + [0], [0, 1, 2, 1]]
)
def test_a_prefix_of_no_sequence_is_refused(prefix):
    with pytest.raises(ValueError, match="begins with"):
        TINY.next_token_distribution(prefix)


def test_a_sequence_without_a_certain_token_cannot_be_scored():
    with pytest.raises(ValueError, match="nothing comes back"):
        TINY.evaluate(Knows(TINY), torch.tensor([[0, 1, 2]]))
    with pytest.raises(ValueError, match="batch_size"):
        TINY.batches(1, 0, torch.Generator())
