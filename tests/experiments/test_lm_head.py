import math

import pytest
import torch
from torch import nn

from transformer_block import LanguageModel, toy_config, toy_language
from transformer_block.experiments.lm_head import (
    COLOURS,
    HEADS,
    MOMENTS,
    NOUNS,
    WAYS,
    alike,
    decoded,
    decoding,
    join_pairs,
    tying,
    with_head,
)

LANGUAGE = toy_language()


def rows_of(words):
    return [LANGUAGE.id_of[word] for word in words]


def test_a_head_is_tied_or_has_a_tensor_of_its_own():
    for head in HEADS:
        model = with_head(head, seed=3)
        assert (model.W_LM.weight is model.E.weight) == head.startswith("tied")
        assert model.W_LM.weight.requires_grad == (not head.startswith("fixed"))


@pytest.mark.parametrize(
    ("head", "words"),
    [("all words", LANGUAGE.vocabulary), ("colours", COLOURS), ("nouns", NOUNS)],
)
def test_just_the_named_rows_are_begun_twice_as_large(head, words):
    plain, larger = with_head("tied", seed=3), with_head(f"tied, {head} × 2", seed=3)
    factor = torch.ones(len(LANGUAGE.vocabulary), 1)
    factor[rows_of(words)] = 2
    assert torch.equal(larger.E.weight, factor * plain.E.weight)
    assert torch.equal(larger.P.weight, plain.P.weight)


def test_a_fixed_head_is_the_untied_one_or_eight_times_that():
    untied, fixed, large = (with_head(h, seed=3) for h in ("untied", "fixed", "fixed, × 8"))
    assert torch.equal(fixed.W_LM.weight, untied.W_LM.weight)
    assert torch.equal(large.W_LM.weight, 8 * untied.W_LM.weight)
    assert torch.equal(large.E.weight, untied.E.weight)


def test_a_head_depends_on_its_seed_alone():
    before = torch.get_rng_state()
    one, again, other = (with_head("tied", seed=seed).E.weight for seed in (3, 3, 4))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    with pytest.raises(ValueError, match=r"the heads are untied; tied; .*; not 'large'"):
        with_head("large", seed=3)


def test_alike_is_the_mean_cosine_of_two_different_colours():
    rows = torch.zeros(len(LANGUAGE.vocabulary), 6)
    rows[rows_of(COLOURS)] = 3 * torch.eye(6)
    assert alike(rows) == 0
    rows[rows_of(COLOURS), 0] = 3  # five rows now share a half with the first, or with each other
    assert alike(rows) == pytest.approx((10 * 0.5**0.5 + 20 * 0.5) / 30)
    assert alike(torch.ones(len(LANGUAGE.vocabulary), 2)) == pytest.approx(1)


def test_the_colours_are_what_copy_copies_and_the_nouns_another_family():
    said = {f.name: {w for sentence in f.parsed for w in sentence} for f in LANGUAGE.families}
    assert said["copy"] == {*COLOURS, "say", ":", "."}
    assert set(NOUNS) <= said["agreement"]
    assert len(NOUNS) == len(COLOURS)


def test_the_recorded_first_losses_are_near_ln_v_but_for_the_large_starts():
    for row in tying.stored()["rows"]:
        near = 0.6 if row["head"] in ("tied, all words × 2", "fixed, × 8") else 0.15
        assert row["first_loss"] == pytest.approx(math.log(216), abs=near)
        assert len(row["alike_E"]) == len(row["alike_W_LM"]) == len(MOMENTS)
        if row["head"].startswith("tied"):
            assert row["alike_E"] == row["alike_W_LM"]


def untrained():
    torch.manual_seed(3)
    return LanguageModel(toy_config(d_model=12, n_heads=3, d_ff=20)).eval()


def test_as_it_is_decoding_errs_as_the_language_says():
    model = untrained()
    wrong, lost = decoded(model, LANGUAGE, "as it is")
    assert wrong == pytest.approx(1 - LANGUAGE.evaluate(model).allowed, abs=1e-6)
    assert lost == 0


class Perfect(nn.Module):
    """Gives each prefix of one small language its true chances."""

    def __init__(self, language):
        super().__init__()
        self.language = language

    def forward(self, ids):
        logits = torch.full((*ids.shape, len(self.language.vocabulary)), -50.0)
        for row, sentence in zip(logits, self.language.sentences, strict=True):
            for t in range(len(sentence)):
                for word, p in self.language.next_token_distribution(sentence[:t]).items():
                    row[t, self.language.id_of[word]] = math.log(p)
        return logits


def test_a_perfect_model_is_never_wrong_and_greedy_loses_what_is_rarer():
    weather = LANGUAGE.only("weather")
    perfect = Perfect(weather)
    assert decoded(perfect, weather, "as it is") == pytest.approx((0, 0), abs=1e-9)
    wrong, lost = decoded(perfect, weather, "greedy")
    # of 15 words, one of four adjectives, one of two persons and one of two places is open
    assert wrong == pytest.approx(0, abs=1e-9)
    assert lost == pytest.approx((0.75 + 0.5 + (0.2 + 0.3 + 0.4 + 0.4) / 4) / 15)


def test_every_way_was_recorded_and_only_cuts_lose_words():
    for row in decoding.stored()["rows"]:
        assert WAYS.keys() <= row.keys()
        for way in ("as it is", "T = ½", "T = 2"):
            assert row[way][1] == 0
        assert row["greedy"][1] > row["top-k 5"][1] > row["top-p 0.9"][1]


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
