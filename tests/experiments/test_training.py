import math

import pytest
import torch
from torch import nn

from transformer_block import Job, LayerNorm, PostNormBlock, toy_language
from transformer_block.ablation import AttentionOnly
from transformer_block.experiments import training
from transformer_block.experiments.training import (
    REMOVED,
    TURNS,
    antecedent,
    harm,
    job_without,
    learner,
    moments,
    surprise,
    train_in_turn,
)


@pytest.fixture(scope="module")
def model():
    return Job(seed=3).model()


def test_what_is_removed_is_gone():
    models = {removed: job_without(removed, seed=1).model() for removed in REMOVED}
    assert isinstance(models["FFN"].blocks[1], AttentionOnly)
    assert isinstance(models["Pre-Norm, for Post-Norm"].blocks[0], PostNormBlock)
    assert models["σ in the FFN"].config.activation == "identity"
    norms = {k: sum(isinstance(m, LayerNorm) for m in v.modules()) for k, v in models.items()}
    assert (norms["nothing"], norms["norms in blocks"], norms["all norms"]) == (5, 1, 0)
    shape = job_without("nothing", seed=1, n_layers=3, n_heads=2, steps=7)
    assert (shape.config.n_layers, shape.config.n_heads, shape.recipe.steps) == (3, 2, 7)
    with pytest.raises(ValueError, match=r"what can be removed is nothing, .*; not 'head'"):
        job_without("head", seed=1)


@pytest.mark.parametrize("turns", TURNS)
def test_in_its_turn_a_part_learns_and_nothing_else_ever(turns, monkeypatch):
    calls = []

    def listen(model, source, *, seed, recipe):
        calls.append(
            (recipe.steps, seed, {n for n, p in model.named_parameters() if p.requires_grad})
        )

    monkeypatch.setattr(training, "train", listen)
    train_in_turn(turns, seed=5, steps=12)
    steps, seeds, learning = zip(*calls, strict=True)
    assert sum(steps) == 12
    assert len(set(seeds)) == len(seeds)
    assert len(calls) == (1 if turns == "all together" else 3)
    every = {name for name, _ in Job(seed=5).model().named_parameters()}
    frozen = {name for name in every if "norm" in name or name in ("E.weight", "P.weight")}
    assert set().union(*learning) == every - frozen
    assert sum(map(len, learning)) == len(every - frozen)


def test_turns_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="steps they divide; 400 is not"):
        train_in_turn("head, attention, FFN", seed=1, steps=400)
    with pytest.raises(ValueError, match="not 'head first'"):
        train_in_turn("head first", seed=1, steps=3)


def test_the_antecedent_is_the_phone(model):
    with torch.no_grad():
        for block in model.blocks:
            nn.init.zeros_(block.mha.W_Q.weight)
    n = len(toy_language().encode(training.PHONE))
    assert antecedent(model) == pytest.approx(1 / n)  # no preference: an even look at n tokens
    assert toy_language().decode(toy_language().encode(training.PHONE))[-3] == "phone"


def test_surprise_is_the_divergence_at_one_word():
    language = toy_language()
    p = language.next_token_distribution(training.PHONE)
    even = math.log(len(language.vocabulary)) + sum(v * math.log(v) for v in p.values())

    flat = Job(seed=3).model()
    nn.init.zeros_(flat.W_LM.weight)
    assert surprise(flat) == pytest.approx(even, rel=1e-5)


def test_a_head_that_writes_nothing_does_no_harm(model):
    with torch.no_grad():
        model.blocks[1].mha.W_O.weight[:, 16:32] = 0  # the second head of the second block
    J = harm(model)
    assert J.shape == (len(toy_language().families), 8)
    assert J[:, 5].abs().max() < 1e-6
    assert J.max() > 1e-5


def test_moments_go_from_start_to_end():
    assert moments(800) == (0, 50, 100, 200, 400, 800)


def test_one_part_learns_behind_a_louder_head():
    usual, loud = (learner("attention", seed=5, head_times=times) for times in (1, 8))
    assert torch.equal(loud.W_LM.weight, 8 * usual.W_LM.weight)
    assert torch.equal(loud.E.weight, usual.E.weight)
    learning = {name for name, p in loud.named_parameters() if p.requires_grad}
    assert learning == {name for name, _ in loud.named_parameters() if ".mha." in name}


def test_other_rates_change_the_rate_and_nothing_else(monkeypatch):
    ran = []

    def stop(job):
        ran.append(job)
        raise InterruptedError

    monkeypatch.setattr(Job, "run", stop)
    for study, given in (
        (training.at_other_rates, {"removed": "residual", "lr": 1e-3}),
        (training.eight_blocks_slowly, {"removed": "residual"}),
    ):
        with pytest.raises(InterruptedError):
            study(5, **given)
    two, eight = ran
    assert (two.recipe.lr, eight.recipe.lr) == (1e-3, 3e-4)
    assert two.recipe.steps == eight.recipe.steps == 400
    assert two.without == eight.without == "residual"
    assert (two.config.n_layers, eight.config.n_layers) == (2, 8)
