import copy

import pytest
import torch
from torch import nn

from transformer_block import LanguageModel, LayerNorm, RMSNorm, toy_config
from transformer_block.experiments.layernorm import (
    CHANGES,
    NORMS,
    BatchNormOverTokens,
    FixedAffine,
    changed_stack,
    deviation,
    disturbances,
    loss_by_mode,
    sixty_steps,
    stream_sizes,
    through,
    train_with,
    with_norms,
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


@pytest.mark.parametrize("norms", NORMS)
def test_every_layer_norm_is_replaced_in_a_copy(norms):
    model = small_model()
    changed = with_norms(model, norms)
    in_blocks, last = NORMS[norms]
    assert type(changed.norm_final) is last
    assert all(type(b.norm_mha) is type(b.norm_ffn) is in_blocks for b in changed.blocks)
    assert type(model.norm_final) is LayerNorm
    assert torch.equal(model.E.weight, changed.E.weight)
    with pytest.raises(ValueError, match="the norms are LayerNorm; RMSNorm"):
        with_norms(model, "GroupNorm")


def test_a_fixed_map_keeps_what_its_first_batch_gave_and_normalises_nothing_later():
    X = 3 * torch.randn(2, 50, 12, dtype=torch.float64) + 1
    fixed = FixedAffine(12).double()
    first = fixed(X)
    assert torch.allclose(first, BatchNormOverTokens(12).double()(X), atol=1e-12)
    at_0 = fixed(0 * X)
    assert torch.allclose(fixed(10 * X) - at_0, 10 * (first - at_0))
    assert torch.equal(fixed(X[:1, :1]), first[:1, :1]), "one token alone, and the same in company"
    assert torch.equal(fixed.eval()(X), first)
    assert len(list(fixed.parameters())) == 2


@pytest.mark.parametrize("training", [True, False])
def test_disturbances_are_seen_and_leave_the_model_as_it_was(training):
    model = with_norms(small_model(), "BatchNorm").train(training)
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
    model = train_with("BatchNorm", seed=31, batch_size=2, steps=3)
    assert not model.training
    assert model.norm_final.running_mu.abs().max() > 0
    now, later = loss_by_mode(model, seed=31, batch_size=500)
    assert abs(now - later) > 0.01
    now, later = loss_by_mode(
        train_with("LayerNorm", seed=31, batch_size=2, steps=3), seed=31, batch_size=500
    )
    assert now == later


def test_the_same_seed_gives_the_same_model_and_draws_nothing_from_outside():
    state = torch.get_rng_state()
    one, two = (train_with("LayerNorm", seed=31, batch_size=2, steps=2) for _ in range(2))
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(one.W_LM.weight, two.W_LM.weight)


def test_each_change_of_a_stack_changes_what_it_says():
    models = {change: changed_stack(change, 3, seed=31) for change in CHANGES}
    whole = models.pop("nothing")
    norms = {
        change: sum(isinstance(part, LayerNorm) for part in model.modules())
        for change, model in models.items()
    }
    assert list(norms.values()) == [1, 6, 0, 7]
    assert models["γ of the final norm from 10"].norm_final.gamma.eq(10).all()
    assert all(torch.equal(model.W_LM.weight, whole.W_LM.weight) for model in models.values())
    small = changed_stack("nothing", 3, seed=31, scale=0.3)
    assert torch.allclose(small.blocks[2].ffn.W_1.weight, 0.3 * whole.blocks[2].ffn.W_1.weight)
    assert torch.equal(small.E.weight, whole.E.weight)
    with pytest.raises(ValueError, match="the changes are nothing"):
        changed_stack("W_O", 3, seed=31)


def test_a_walk_tells_deviations_that_the_blocks_read_and_variances_they_write():
    model = changed_stack("nothing", 3, seed=31)
    walk = through(model, seed=31)
    assert [len(each) for each in walk] == [3, 3, 3, 3]
    assert walk.stands[0] == pytest.approx(1, abs=0.01)
    assert walk.mha_reads == pytest.approx([1] * 3, abs=1e-3)
    with torch.no_grad():
        model.blocks[1].norm_ffn.gamma.fill_(2)
        model.blocks[2].mha.W_O.weight.zero_()
        model.blocks[2].ffn.W_2.weight.zero_()
        model.blocks[2].ffn.W_2.bias.zero_()
    walk = through(model, seed=31)
    assert walk.ffn_reads == pytest.approx([1, 2, 1], abs=1e-3)
    assert walk.writes[2] == 0 < walk.writes[1]
    bare = through(changed_stack("norms in blocks", 3, seed=31), seed=31)
    assert bare.mha_reads == pytest.approx([variance**0.5 for variance in bare.stands])
    assert deviation(torch.tensor([[3.0, 1], [2, 8]])) == pytest.approx(5**0.5)


def test_a_beginning_is_sixty_losses_and_refuses_what_breaks_at_once():
    losses = sixty_steps(changed_stack("nothing", 1, seed=31), seed=31)
    assert len(losses) == 60
    assert losses[-1] < losses[0]
    broken = changed_stack("nothing", 1, seed=31)
    with torch.no_grad():
        broken.W_LM.weight.fill_(torch.inf)
    with pytest.raises(ValueError, match="training broke at step 0"):
        sixty_steps(broken, seed=31)


def test_the_sizes_of_the_stream_are_those_before_the_first_step_and_after_each():
    model = changed_stack("nothing", 2, seed=31)
    sizes = stream_sizes(model, seed=31, steps=2)
    assert len(sizes) == 3
    assert sizes == stream_sizes(changed_stack("nothing", 2, seed=31), seed=31, steps=2)
    assert stream_sizes(model, seed=31, steps=1)[0] == pytest.approx(sizes[-1])


def test_an_untrained_model_with_centred_writers_is_an_rms_norm_model():
    model = small_model().double().requires_grad_(False)
    centred = copy.deepcopy(model)
    for name, W in centred.named_parameters():
        if name in ("E.weight", "P.weight"):
            W -= W.mean(dim=-1, keepdim=True)
        if ".W_O." in name or ".W_2." in name:
            W -= W.mean(dim=0)
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    rms = with_norms(centred, "RMSNorm").double()
    assert isinstance(rms.norm_final, RMSNorm)
    assert torch.allclose(rms(ids), model(ids), rtol=0, atol=1e-12)
