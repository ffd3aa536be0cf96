"""What d_ff buys: Cover's count, planes found or refused, facts stored."""

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from transformer_block import LanguageModel, PreNormBlock, toy_config
from transformer_block.experiments import ffn
from transformer_block.experiments.ffn import (
    Facts,
    at_work,
    cover,
    lone_facts,
    most_facts,
    same_weights,
    separable,
    separable_share,
    store,
    two_key_facts,
)


def every_side(n):
    return torch.tensor(list(itertools.product((-1.0, 1.0), repeat=n)), dtype=torch.float64)


def by_linear_programme(features, sides):
    """Decide as another method does: is there a w with side · (φ, 1) w >= 1 for all points?"""
    A = np.c_[features.numpy(), np.ones(len(features))] * sides.numpy()[:, None]
    A = A / np.abs(A).max(axis=0)
    found = linprog(np.zeros(A.shape[1]), A_ub=-A, b_ub=-np.ones(len(A)), bounds=(None, None))
    return found.status == 0


@pytest.mark.parametrize(("n", "d"), [(5, 2), (7, 3), (4, 5)])
def test_cover_counts_what_is_separable_of_all_dichotomies(n, d):
    points = torch.randn(n, d, dtype=torch.float64)
    assert separable(points, every_side(n)).double().mean() == cover(n, d + 1)


def test_a_plane_is_found_exactly_where_a_linear_programme_finds_one():
    points = torch.randn(30, 14, dtype=torch.float64)
    sides = torch.randint(2, (40, 30)).double() * 2 - 1
    ours = separable(points, sides)
    assert ours.tolist() == [by_linear_programme(points, side) for side in sides]
    assert 0 < ours.sum() < 40, "the case must have both kinds"


def test_the_staircase_lamp_is_not_separable_and_becomes_so_with_one_feature_more():
    square = torch.tensor([[0.0, 0], [0, 1], [1, 0], [1, 1]], dtype=torch.float64)
    lamp = torch.tensor([[-1.0, 1, 1, -1]], dtype=torch.float64)
    product = square.prod(dim=1, keepdim=True)
    assert not separable(square, lamp).any()
    assert separable(torch.cat([square, product], dim=1), lamp).all()


def test_a_side_that_is_no_side_is_refused():
    with pytest.raises(ValueError, match=r"\+1 or −1"):
        separable(torch.randn(4, 2, dtype=torch.float64), torch.zeros(1, 4, dtype=torch.float64))


def test_no_activation_gains_no_plane_but_rounding_seems_to():
    assert separable_share(51, 6, 24, "identity") == 0
    assert separable_share(51, 6, 24, "identity", dtype=torch.float32) > 0.9
    assert separable_share(51, 6, 24, "gelu") > 0.95


def test_neither_key_alone_tells_the_answer():
    facts = two_key_facts(3, d_model=12, n_keys=5, n_answers=4)
    assert facts.keys.shape == (25, 12)
    table = facts.keys.view(5, 5, 12)
    assert (table[:, :1, :6] == table[..., :6]).all(), "the first key stands in the first half"
    assert (table[:1, :, 6:] == table[..., 6:]).all(), "the second key in the second half"
    answers = facts.answers.view(5, 5)
    assert all(len(set(line.tolist())) > 1 for line in (*answers, *answers.T))


def test_two_keys_need_an_even_width():
    with pytest.raises(ValueError, match="half and half"):
        two_key_facts(3, d_model=7)


def test_right_says_which_facts_are():
    facts = lone_facts(4, 30, d_model=9, n_answers=5)
    stored = store(4, facts, d_ff=14, activation="silu")
    assert facts.right(stored).all()
    elsewhere = Facts(facts.keys, (facts.answers + 1) % 5, facts.words)
    assert not elsewhere.right(stored).any()


def test_storing_leaves_the_global_random_state_alone_and_repeats():
    facts = lone_facts(5, 10)
    before = torch.get_rng_state()
    one, two = (store(5, facts, 6, steps=4).W_1.weight for _ in range(2))
    assert torch.equal(one, two)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("able", [10, 17, 99, 640, 5000])
def test_the_most_is_found_to_within_the_factor(monkeypatch, able):
    monkeypatch.setattr(ffn, "store", lambda seed, facts, *sizes: len(facts.keys))
    monkeypatch.setattr(Facts, "right", lambda facts, n: torch.arange(n) < able)
    most = int(able / 0.99)  # so many, of which `able` are right, are still 99 %
    for near in (1.04, 1.5):
        found = most_facts(51, 6, near=near)
        assert found <= most
        assert found == 0 or most < max(found * near, found + 1) + 1
    assert (most_facts(51, 6) == 0) == (most < 16)


def test_all_that_are_tried_may_be_stored(monkeypatch):
    monkeypatch.setattr(ffn, "store", lambda seed, facts, *sizes: len(facts.keys))
    monkeypatch.setattr(Facts, "right", lambda facts, n: torch.arange(n) >= 0)
    assert most_facts(51, 6) == 8192


def test_blocks_of_other_widths_have_as_many_weights():
    for d_model in (12, 20, 32, 44, 54):
        block = PreNormBlock(d_model, n_heads=2, d_ff=same_weights(d_model))
        weights = sum(p.numel() for p in block.parameters() if p.dim() == 2)
        assert weights == pytest.approx(12 * 32**2, abs=d_model)
    with pytest.raises(ValueError, match="of 12288 none are left for an FFN"):
        same_weights(64)


def test_silent_neurons_and_the_share_of_the_strongest_are_those_of_the_hidden_layer():
    model = LanguageModel(toy_config(n_layers=1, activation="relu"))
    look = at_work(model, seed=3)
    assert 0.3 < look["zeros"] < 0.7
    assert 0.1 < look["tenth"] < 1  # the strongest tenth writes more than its share
    torch.nn.init.zeros_(model.blocks[0].ffn.W_1.weight)
    torch.nn.init.constant_(model.blocks[0].ffn.W_1.bias, -1.0)
    assert at_work(model, seed=3)["zeros"] == 1
    torch.nn.init.ones_(model.blocks[0].ffn.W_1.bias)
    torch.nn.init.ones_(model.blocks[0].ffn.W_2.weight)
    alike = at_work(model, seed=3)  # all neurons write the same: a tenth writes a tenth
    tenth = model.config.d_ff // 10 / model.config.d_ff
    assert alike == {"zeros": 0, "tenth": pytest.approx(tenth)}
