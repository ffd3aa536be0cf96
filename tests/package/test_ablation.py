from dataclasses import replace

import pytest
import torch

from transformer_block.ablation import (
    LEARNERS,
    PARTS,
    AttentionOnly,
    FeedForwardOnly,
    NoResidual,
    freeze_all_but,
    without,
)
from transformer_block.attention import causal_mask
from transformer_block.config import ModelConfig
from transformer_block.language import toy_language
from transformer_block.language_model import LanguageModel
from transformer_block.training import Job, Recipe

L = toy_language()
V = len(L.vocabulary)
CONFIG = ModelConfig(vocab_size=V, n_ctx=16, d_model=12, n_heads=3, n_layers=2, d_ff=20)


def job(**changes):
    return Job(**({"config": CONFIG, "seed": 4} | changes))


def zero_sublayers(model):
    for block in model.blocks:
        for out in (block.mha.W_O.weight, block.ffn.W_2.weight, block.ffn.W_2.bias):
            torch.nn.init.zeros_(out)


def names(model):
    return {name for name, _ in model.named_parameters()}


def test_without_residual_zero_sublayers_give_zero():
    model = without(job().model(), "residual")
    zero_sublayers(model)
    X = torch.randn(2, 5, 12)
    assert torch.equal(model.blocks[0](X, causal_mask(5)), torch.zeros_like(X))
    whole = job().model()
    zero_sublayers(whole)
    assert torch.equal(whole.blocks[0](X, causal_mask(5)), X)
    assert names(model) == names(whole)


def test_without_residual_is_its_formula():
    whole = job().model()
    block, X = whole.blocks[1], torch.randn(2, 5, 12)
    H = block.mha(block.norm_mha(X), causal_mask(5))
    taken = without(whole, "residual").blocks[1]
    assert isinstance(taken, NoResidual)
    assert torch.equal(taken(X, causal_mask(5)), block.ffn(block.norm_ffn(H)))


@pytest.mark.parametrize(
    ("part", "gone", "kind"),
    [("ffn", "ffn", AttentionOnly), ("attention", "mha", FeedForwardOnly)],
)
def test_without_a_sublayer_none_of_its_parameters_remain(part, gone, kind):
    whole, X = job().model(), torch.randn(2, 5, 12)
    model = without(whole, part)
    assert names(model) == {n for n in names(whole) if gone not in n}
    block, taken = whole.blocks[0], model.blocks[0]
    assert isinstance(taken, kind)
    if part == "ffn":
        expected = X + block.mha(block.norm_mha(X), causal_mask(5))
    else:
        expected = X + block.ffn(block.norm_ffn(X))
    assert torch.equal(taken(X, causal_mask(5)), expected)


@pytest.mark.parametrize(
    ("part", "gone"),
    [
        ("norms in blocks", ("norm_mha", "norm_ffn")),
        ("final norm", ("norm_final",)),
        ("all norms", ("norm_mha", "norm_ffn", "norm_final")),
    ],
)
def test_without_norms_exactly_those_are_gone(part, gone):
    whole = job().model()
    model = without(whole, part)
    assert names(model) == {n for n in names(whole) if not any(g in n for g in gone)}
    if "norm_mha" in gone:
        X = torch.randn(2, 5, 12)
        block = whole.blocks[0]
        H = X + block.mha(X, causal_mask(5))
        assert torch.equal(model.blocks[0](X, causal_mask(5)), H + block.ffn(H))


@pytest.mark.parametrize("part", PARTS)
def test_surgery_leaves_the_patient_alone_and_the_copy_runs(part):
    whole = job().model()
    before = names(whole)
    ids = L.encode("the central bank raised the")[None]
    logits = whole(ids)
    model = without(whole, part)
    assert names(whole) == before
    assert torch.equal(whole(ids), logits)
    assert model(ids).shape == logits.shape
    assert not torch.equal(model(ids), logits)
    changed = ids.clone()
    changed[0, -1] = 5
    assert torch.equal(model(changed)[:, :-1], model(ids)[:, :-1])


@pytest.mark.parametrize("part", [p for p in PARTS if p != "attention"])
def test_a_model_without_a_part_still_reads_with_a_cache(part):
    model = without(job().model(), part)
    ids = L.encode("the central bank raised the")[None]
    caches = model.new_caches()
    stepwise = torch.cat([model(ids[:, :2], caches), model(ids[:, 2:], caches)], 1)
    assert torch.allclose(stepwise, model(ids), rtol=0, atol=1e-5)


def test_unknown_parts_are_refused():
    with pytest.raises(ValueError, match=r"the parts that can go are residual.*'heads'"):
        without(job().model(), "heads")
    with pytest.raises(ValueError, match="one part only"):
        without(without(job().model(), "ffn"), "residual")
    with pytest.raises(ValueError, match='norm_place="pre"'):
        without(LanguageModel(replace(CONFIG, norm_place="post")), "residual")


@pytest.mark.parametrize("parts", [*((part,) for part in LEARNERS), ("ffn", "head")])
def test_only_these_parts_learn(parts):
    before, run = job().model(), job(only=parts, recipe=Recipe(steps=20)).run()
    moved = {
        name
        for (name, p), q in zip(run.model.named_parameters(), before.parameters(), strict=True)
        if not torch.equal(p, q)
    }
    marks = {"attention": ".mha.W_", "ffn": ".ffn.W_", "head": "W_LM"}
    assert moved == {name for name in names(before) if any(marks[p] in name for p in parts)}


def test_what_cannot_learn_alone_is_refused():
    with pytest.raises(ValueError, match="attention, ffn, head"):
        freeze_all_but(job().model(), "ffn", "norms")
    with pytest.raises(ValueError, match="attention, ffn, head"):
        freeze_all_but(job().model())
    with pytest.raises(ValueError, match="tie_weights=False"):
        freeze_all_but(LanguageModel(replace(CONFIG, tie_weights=True)), "head")
