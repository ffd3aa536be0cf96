import copy

import pytest
import torch
from torch import nn

from transformer_block import causal_mask, next_token_loss
from transformer_block.experiments import residual
from transformer_block.experiments.deep_stacks import deep_model, first_steps, streams
from transformer_block.experiments.residual import (
    ResidualNet,
    fit,
    fit_one_by_one,
    fit_together,
    wave,
)


def model():
    return deep_model("pre-norm", 2, seed=1, d_model=12, n_heads=3)


@pytest.mark.parametrize("way", residual.WAYS)
@pytest.mark.parametrize("n_layers", [1, 3])
def test_the_blocks_run_and_their_counts_are_those_of_the_modules(way, n_layers):
    blocks = residual.joined(way, n_layers, d_model=12, n_heads=3)
    X, mask = torch.randn(2, 5, 12), causal_mask(5)
    for block in blocks:
        X = block(X, mask)
    assert X.shape == (2, 5, residual.joined_width(way, n_layers, 12))
    matrices = [p for p in blocks.parameters() if p.ndim == 2]
    assert sum(p.numel() for p in matrices) == residual.joined_weights(way, n_layers, 12)


@pytest.mark.parametrize("d", [4, 12])
@pytest.mark.parametrize("n_layers", [1, 2, 7])
def test_the_counts_follow_their_formulas(n_layers, d):
    L = n_layers
    assert [residual.joined_width(way, L, d) for way in residual.WAYS] == [d, (2 * L + 1) * d, d]
    weights = [residual.joined_weights(way, L, d) for way in residual.WAYS]
    assert weights == [12 * L * d**2, (7 * L**2 + 9 * L) * d**2, 16 * L * d**2]


def test_appending_overwrites_nothing():
    block = residual.AppendBlock(20, d_model=12, n_heads=3)
    X = torch.randn(2, 5, 20)
    out = block(X, causal_mask(5))
    assert out.shape == (2, 5, 44)
    assert torch.equal(out[..., :20], X)


def test_a_projection_that_begins_as_a_sum_is_one(double):
    X = torch.randn(4, 5, 12)
    added = model()
    as_sum = residual.projected(model(), seed=1, as_sum=True)
    torch.testing.assert_close(streams(as_sum, X)[-1], streams(added, X)[-1])
    drawn = residual.projected(model(), seed=1)
    assert not torch.allclose(streams(drawn, X)[-1], streams(added, X)[-1])


def test_a_projection_is_drawn_from_its_seed_alone():
    state = torch.get_rng_state()
    one, two, other = (residual.projected(model(), seed=s).blocks[1].P_ffn for s in (1, 1, 2))
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(one.weight, two.weight)
    assert not torch.equal(one.weight, other.weight)


def test_an_unknown_way_is_refused():
    with pytest.raises(ValueError, match="add, append, concat and project; not 'glue'"):
        residual.joined("glue", 1, 12, 3)


def test_the_wave_has_variance_one_and_depends_on_its_seed():
    x, y = wave(1)
    assert x.shape == y.shape == (200, 1)
    assert float(y.mean()) == pytest.approx(0, abs=1e-6)
    assert float(y.var(unbiased=False)) == pytest.approx(1, abs=1e-5)
    assert torch.equal(x, wave(1)[0])
    assert not torch.equal(x, wave(2)[0])


def test_errors_are_read_off_behind_each_part():
    net, (x, y) = ResidualNet(3), wave(1)
    X = net.W_in(x)
    for F, error in zip(net.parts, net.errors(x, y), strict=True):
        X = X + F(X)
        assert error == pytest.approx(float((y - net.w(X)).square().mean().detach()))
    assert torch.equal(net(x), net(x, 3))


def test_a_later_part_is_fitted_to_the_error_left_and_moves_nothing_else(double):
    net, (x, y) = ResidualNet(2), (T.double() for T in wave(1))
    left = (y - net(x, 1)).detach()
    X = net.W_in(x)
    X = X + net.parts[0](X)
    increment = net.parts[1](X) @ net.w.weight.T
    torch.testing.assert_close((y - net(x, 2)), left - increment)

    before = {name: p.clone() for name, p in net.named_parameters()}
    fit(net, x, y, net.parts[1].parameters(), 2, steps=3)
    moved = {name for name, p in net.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {name for name in before if name.startswith("parts.1")}


def test_part_by_part_each_is_trained_and_earlier_ones_stay(monkeypatch):
    calls = []
    monkeypatch.setattr(
        residual, "fit", lambda net, x, y, learning, n=None: calls.append((len(list(learning)), n))
    )
    net = ResidualNet(3)
    fit_one_by_one(net, *wave(1))
    fit_together(net, *wave(1))
    assert calls == [(8, 1), (4, 2), (4, 3), (16, None)]


def bare(n_layers=3):
    """A bare stack, and what five steps have made of it."""
    start = deep_model("no residual", n_layers, seed=1, d_model=12, n_heads=3)
    after = copy.deepcopy(start)
    first_steps(after, seed=1, steps=5)
    return start, after


def test_gradient_lengths_are_those_of_backward():
    model = deep_model("pre-norm", 2, seed=1)
    ids, counts = residual.new_sentences(4)
    found = residual.gradient_lengths(model, seed=4)
    assert all(p.grad is None for p in model.parameters())
    next_token_loss(model(ids), ids, counts).backward()
    for block, length in zip(model.blocks, found, strict=True):
        every = torch.cat([p.grad.flatten() for p in block.parameters()])
        assert length == pytest.approx(float(every.norm()), rel=1e-4)
    assert found != residual.gradient_lengths(model, seed=5)


def test_sizes_are_root_mean_squares_in_the_order_of_the_blocks():
    model = deep_model("pre-norm", 2, seed=1)
    norms = residual.sizes(model, "blocks.*.norm_ffn", seed=1)
    assert norms == pytest.approx([1, 1], abs=0.01)
    with torch.no_grad():
        model.blocks[1].ffn.W_2.weight.zero_()
        model.blocks[1].ffn.W_2.bias.fill_(3)
    assert residual.sizes(model, "blocks.*.ffn", seed=1)[1] == pytest.approx(3)


def test_tokens_that_are_all_alike_are_not_apart():
    start, _ = bare()
    assert residual.apart(start, seed=1) > 1e-2
    with torch.no_grad():
        start.blocks[2].ffn.W_2.weight.zero_()
        start.blocks[2].ffn.W_2.bias.fill_(3)
    assert residual.apart(start, seed=1) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("random", [False, True])
def test_the_two_parts_of_a_first_matrix_s_change_make_the_whole(random):
    start, after = bare()
    parts = [
        residual.part_of_change(start, after, keep=keep, seed=1, random=random)
        for keep in (True, False)
    ]
    old, new, answer, rest = (m.blocks[0].mha.W_V.weight for m in (start, after, *parts))
    torch.testing.assert_close((answer - old) + (rest - old), new - old)
    assert torch.linalg.matrix_rank(answer - old, rtol=1e-3) == 1
    assert torch.equal(parts[0].blocks[0].norm_mha.gamma, after.blocks[0].norm_mha.gamma)


def test_the_common_answer_is_that_to_the_mean_token_and_is_found_behind_edits():
    start, after = bare()
    model = residual.part_of_change(start, after, keep=False, seed=1)
    given = {}
    handles = [
        part.register_forward_hook(
            lambda _, args, out, name=name: given.update({name: args[0].flatten(0, -2).mean(0)})
        )
        for name, part in model.blocks.named_modules()
        if isinstance(part, nn.Linear)
    ]
    model(residual.new_sentences(1).ids)
    for handle in handles:
        handle.remove()
    olds, news = (dict(m.blocks.named_modules()) for m in (start, model))
    assert len(given) == 3 * 6
    for name, mean in given.items():  # no matrix answers its mean token otherwise than at first
        change = (news[name].weight - olds[name].weight) @ mean
        assert change.norm() < 1e-4 * (olds[name].weight @ mean).norm(), name


def test_splitting_leaves_the_models_and_the_random_state_alone():
    start, after = bare()
    kept = [copy.deepcopy(model.state_dict()) for model in (start, after)]
    state = torch.get_rng_state()
    model = residual.part_of_change(start, after, keep=True, seed=1, random=True)
    assert torch.equal(state, torch.get_rng_state())
    for before, each in zip(kept, (start, after), strict=True):
        assert all(torch.equal(before[name], p) for name, p in each.state_dict().items())
    assert not any(part._forward_pre_hooks for part in model.modules())
