import re
from pathlib import Path

import pytest
import torch

from transformer_block import LanguageModel, toy_config, toy_language
from transformer_block.experiments.the_task import PROMPTS, read_after, turns, with_keys

TOY = toy_language()


@pytest.fixture
def model():
    torch.manual_seed(3)
    return LanguageModel(toy_config()).double()


def test_reading_after_all_blocks_is_the_model_and_after_none_has_no_block(model):
    ids = TOY.encode(PROMPTS["park"])[None]
    assert torch.equal(read_after(model, 2)(ids), model(ids))
    X = model.E(ids) + model.P.weight[: ids.shape[1]]
    assert torch.equal(read_after(model, 0)(ids), model.W_LM(model.norm_final(X)))
    assert len(model.blocks) == 2, "the model itself is left as it was"


def test_a_block_that_adds_nothing_turns_nothing(model):
    ids = TOY.encode(PROMPTS["park"])[None]
    block = model.blocks[1]
    with torch.no_grad():
        for last in (block.mha.W_O.weight, block.ffn.W_2.weight, block.ffn.W_2.bias):
            last.zero_()
    first, second = turns(model, ids)
    assert first.shape == (ids.shape[1],)
    assert first.max() < 0.999
    torch.testing.assert_close(second, torch.ones_like(second))


def lives(language):
    return next(family for family in language.families if family.name == "lives")


def test_one_name_and_two_tell_the_same_facts_equally_often():
    one, two = with_keys(1), with_keys(2)
    assert two is TOY
    assert len(lives(one).parsed) == len(lives(two).parsed) == 64
    facts = [
        {(sentence[-2], p) for sentence, (p, _) in lives(language).parsed.items()}
        for language in (one, two)
    ]
    assert facts[0] == facts[1]
    assert {len(sentence) for sentence in lives(one).parsed} == {5}  # a token less
    assert len({sentence[0] for sentence in lives(one).parsed}) == 64
    prompts = ("Anna-Clark lives in", "Anna Clark lives in")
    said = [lang.next_token_distribution(p) for lang, p in zip((one, two), prompts, strict=True)]
    assert said[0] == said[1]


def test_the_other_families_are_left_as_they_are():
    kept = [
        [family for family in language.families if family.name != "lives"]
        for language in (with_keys(1), TOY)
    ]
    assert kept[0] == kept[1]


def test_one_of_two_names_does_not_tell_the_city():
    for place in (0, 1):
        cities = {}
        for sentence in lives(TOY).parsed:
            cities.setdefault(sentence[place], set()).add(sentence[-2])
        assert min(map(len, cities.values())) >= 4


def test_another_number_of_names_is_refused():
    with pytest.raises(ValueError, match="one name here or two, not 3"):
        with_keys(3)


def test_the_introduction_tells_the_sizes_of_the_small_model():
    page = Path(__file__).parents[2] / "book" / "intro.md"
    said = dict(re.findall(r"\| `(\w+)` \|.*?(\d+)[^|\d]*\|$", page.read_text("utf-8"), re.M))
    config = toy_config()
    names = ("d_model", "n_heads", "d_head", "d_ff", "n_layers", "vocab_size")
    assert {name: int(said[name]) for name in names} == {n: getattr(config, n) for n in names}
    assert f"at most {config.n_ctx} " in page.read_text("utf-8")
