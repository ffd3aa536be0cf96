import copy

import pytest
import torch
from torch import nn

from transformer_block import LanguageModel, LayerNorm, toy_config
from transformer_block.experiments.layernorm import (
    BatchNormOverTokens,
    disturbances,
    loss_by_mode,
    train_with_norm,
    with_batch_norm,
)


def of_torch(d_model, momentum=0.1):
    ours = BatchNormOverTokens(d_model, momentum=momentum)
    theirs = nn.BatchNorm1d(d_model, momentum=momentum)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        nn.init.normal_(mine)
        other.data.copy_(mine)
    return ours, theirs


@pytest.mark.usefixtures("double")
def test_it_is_torchs_batch_norm_with_tokens_as_the_batch_in_both_modes():
    ours, theirs = of_torch(12, momentum=0.3)
    for training in (True, True, False):
        X = 3 * torch.randn(2, 5, 12) + 1
        a = ours.train(training)(X)
        b = theirs.train(training)(X.flatten(0, 1)).view_as(X)
        assert torch.allclose(a, b, rtol=0, atol=1e-13)
    assert torch.equal(ours.running_mu, theirs.running_mean)
    assert torch.equal(ours.running_var, theirs.running_var)


@pytest.mark.usefixtures("double")
def test_by_hand_it_is_the_biased_variance_of_a_feature_with_eps_inside():
    X = 1e-3 * torch.randn(2, 5, 12)
    mu, var = X.mean(dim=(0, 1)), X.var(dim=(0, 1), unbiased=False)
    found = BatchNormOverTokens(12, eps=1e-5)(X)
    assert torch.allclose(found, (X - mu) / (var + 1e-5).sqrt(), rtol=0, atol=1e-12)
    wrong = (X - mu) / (var.sqrt() + 1e-5)
    assert not torch.allclose(found, wrong, rtol=0, atol=1e-3)


def test_one_token_is_refused_in_training_mode_only():
    norm = BatchNormOverTokens(12)
    for one in (torch.randn(1, 1, 12), torch.randn(12)):
        with pytest.raises(ValueError, match="needs two tokens or more"):
            norm.train()(one)
        assert norm.eval()(one).shape == one.shape
    with pytest.raises(ValueError, match="d_model = 12"):
        norm(torch.randn(2, 5, 13))
    with pytest.raises(ValueError, match="whole number"):
        BatchNormOverTokens(0)


def small_model(**changes):
    return LanguageModel(toy_config(d_model=12, n_heads=3, d_ff=20, n_layers=2, **changes))


def test_every_layer_norm_is_replaced_in_a_copy():
    model = small_model()
    changed = with_batch_norm(model)
    kinds = [type(part) for part in changed.modules()]
    assert kinds.count(BatchNormOverTokens) == 5
    assert LayerNorm not in kinds
    assert isinstance(model.norm_final, LayerNorm)
    assert torch.equal(model.E.weight, changed.E.weight)


@pytest.mark.parametrize("training", [True, False])
def test_disturbances_are_seen_and_leave_the_model_as_it_was(training):
    model = with_batch_norm(small_model()).train(training)
    before = copy.deepcopy(model.state_dict())
    moved = disturbances(model, seed=31)
    assert model.training is training
    assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())
    assert len(moved) == 5
    if training:
        assert min(moved.values()) > 1e-4
    else:
        assert max(moved.values()) < 1e-5
    assert max(disturbances(small_model().train(training), seed=31).values()) < 1e-5
    assert disturbances(model, seed=31) == moved


def test_disturbances_find_a_planted_leak():
    class Peeks(nn.Module):
        def forward(self, X):
            return X + 0.1 * X.mean(dim=1, keepdim=True)

    model = small_model()
    model.norm_final = Peeks()
    moved = disturbances(model, seed=31)
    assert moved["another last word"] > 1e-3
    assert moved["other sentences beside it"] == 0


def test_training_with_batch_norm_gives_a_model_that_depends_on_its_mode():
    model = train_with_norm("batch", seed=31, batch_size=2, steps=3)
    assert not model.training
    assert model.norm_final.running_mu.abs().max() > 0
    now, later = loss_by_mode(model, seed=31, batch_size=500)
    assert abs(now - later) > 0.01
    now, later = loss_by_mode(
        train_with_norm("layer", seed=31, batch_size=2, steps=3), seed=31, batch_size=500
    )
    assert now == later
    with pytest.raises(ValueError, match="norm must be one of layer, batch"):
        train_with_norm("group", seed=31)


def test_the_same_seed_gives_the_same_model_and_draws_nothing_from_outside():
    state = torch.get_rng_state()
    one, two = (train_with_norm("layer", seed=31, batch_size=2, steps=2) for _ in range(2))
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(one.W_LM.weight, two.W_LM.weight)
