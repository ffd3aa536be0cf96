import math

import pytest
import torch

from transformer_block.experiments.lm_head import HEADS, join_pairs, tying, with_head


def test_the_heads_are_what_they_are_called():
    untied, small, large = (with_head(head, seed=3) for head in HEADS)
    assert untied.W_LM.weight is not untied.E.weight
    for model, std in ((small, 0.05), (large, 0.1)):
        assert model.W_LM.weight is model.E.weight
        assert model.E.weight.std().item() == pytest.approx(std, rel=0.05)


def test_a_head_depends_on_its_seed_alone():
    before = torch.get_rng_state()
    one, again, other = (with_head(HEADS[2], seed=seed).E.weight for seed in (3, 3, 4))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    with pytest.raises(ValueError, match="the heads are untied"):
        with_head("tied", seed=3)


def test_the_recorded_first_losses_are_near_ln_v_but_for_the_large_start():
    rows = tying.stored()["rows"]
    for row in rows:
        near = 0.4 if row["head"] == HEADS[2] else 0.15
        assert row["first_loss"] == pytest.approx(math.log(216), abs=near)
    assert {row["parameters"] for row in rows if row["head"] != "untied"} == {114_400}


COUNTED = {"low": 5, "lower": 2, "newest": 6, "widest": 3}


def test_the_most_frequent_pair_is_joined_first():
    made, cut = join_pairs(COUNTED, 4)
    assert made == ["es", "est", "lo", "low"]
    assert cut["newest"] == ["n", "e", "w", "est"]
    assert all("".join(pieces) == word for word, pieces in cut.items())


def test_frequencies_count_and_ties_follow_the_alphabet():
    assert join_pairs({"ab": 1, "cd": 2}, 1)[0] == ["cd"]
    assert join_pairs({"cd": 1, "ab": 1}, 1)[0] == ["ab"]


def test_a_pair_is_joined_wherever_it_stands_and_joining_ends():
    assert join_pairs({"ababa": 1}, 1)[1]["ababa"] == ["ab", "ab", "a"]
    assert join_pairs({"aaa": 1}, 1)[1]["aaa"] == ["aa", "a"]
    assert join_pairs({"ab": 1}, 9) == (["ab"], {"ab": ["ab"]})
    assert join_pairs({"ab": 1}, 0) == ([], {"ab": ["a", "b"]})
