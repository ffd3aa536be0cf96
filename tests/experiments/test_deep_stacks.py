import math

import pytest
import torch
from torch import nn

from transformer_block import LayerNorm, PostNormBlock, PreNormBlock, causal_mask
from transformer_block.ablation import NoResidual
from transformer_block.experiments.deep_stacks import (
    KINDS,
    AddsNormBlock,
    deep_model,
    first_steps,
    identity_share,
    read_out,
    straightness,
    streams,
)
from transformer_block.language import toy_language
from transformer_block.training import next_token_loss

SMALL = {"d_model": 12, "n_heads": 3}


@pytest.mark.parametrize("kind", KINDS)
def test_a_stack_has_its_blocks_and_depends_on_its_seed_alone(kind):
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    model = deep_model(kind, 3, seed=1, **SMALL)
    assert torch.equal(before, torch.random.get_rng_state())
    torch.manual_seed(6)
    again, other = (deep_model(kind, 3, seed=s, **SMALL) for s in (1, 2))
    assert len(model.blocks) == 3
    assert model.config.d_ff == 48
    assert all(map(torch.equal, model.parameters(), again.parameters()))
    assert not torch.equal(model.E.weight, other.E.weight)


def test_each_kind_is_what_it_is_called():
    kinds = {kind: deep_model(kind, 1, seed=1) for kind in KINDS}
    types = {kind: type(model.blocks[0]) for kind, model in kinds.items()}
    assert types == {
        "pre-norm": PreNormBlock,
        "post-norm": PostNormBlock,
        "adds norm": AddsNormBlock,
        "no norms in blocks": PreNormBlock,
        "no final norm": PreNormBlock,
        "no norms": PreNormBlock,
        "no residual": NoResidual,
        "no residual, no norms in blocks": NoResidual,
    }
    bare = {"no norms in blocks", "no norms", "no residual, no norms in blocks"}
    for kind, model in kinds.items():
        assert isinstance(model.blocks[0].norm_mha, nn.Identity) == (kind in bare)
        assert isinstance(model.blocks[0].norm_ffn, nn.Identity) == (kind in bare)
        last = isinstance(model.norm_final, nn.Identity)
        assert last == (kind in {"no final norm", "no norms", "post-norm"})


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_the_same_weights(kind):
    whole, model = (deep_model(each, 3, seed=31).state_dict() for each in ("pre-norm", kind))
    assert all(torch.equal(weight, whole[name]) for name, weight in model.items())


def test_only_the_matrices_of_the_blocks_are_scaled():
    usual, small = (deep_model("pre-norm", 2, seed=31, scale=scale) for scale in (1.0, 0.3))
    theirs = dict(usual.named_parameters())
    for name, parameter in small.named_parameters():
        factor = 0.3 if name.startswith("blocks.") and parameter.ndim == 2 else 1.0
        assert torch.allclose(parameter, factor * theirs[name]), name


def test_with_std_every_matrix_is_normal_and_every_bias_0():
    model = deep_model("post-norm", 2, seed=31, std=0.02)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.15), name
            assert parameter.abs().max() > 0.04  # a uniform draw would end at 0.035
        else:
            assert parameter.eq(float(name.endswith("gamma"))).all(), name


def test_the_misread_block_is_its_two_equations(double):
    block, X, mask = AddsNormBlock(12, 3, 20), torch.randn(2, 5, 12), causal_mask(5)
    H = block.norm_mha(X) + block.mha(block.norm_mha(X), mask)
    torch.testing.assert_close(block(X, mask), block.norm_ffn(H) + block.ffn(block.norm_ffn(H)))


def test_the_misread_block_is_post_norm_with_the_brackets_moved(double):
    wrong, last, X = AddsNormBlock(12, 3, 20), LayerNorm(12), torch.randn(2, 5, 12)
    for norm in (wrong.norm_mha, wrong.norm_ffn, last):
        nn.init.normal_(norm.gamma, mean=1)
        nn.init.normal_(norm.beta)
    post = PostNormBlock(12, 3, 20)
    post.mha, post.ffn, post.norm_mha, post.norm_ffn = wrong.mha, wrong.ffn, wrong.norm_ffn, last
    torch.testing.assert_close(last(wrong(X)), post(wrong.norm_mha(X)))


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match=r"pre-norm, post-norm, .* not 'deep'"):
        deep_model("deep", 3, seed=1)


def test_streams_are_those_of_the_model():
    model = deep_model("pre-norm", 2, seed=1, **SMALL)
    X = torch.randn(4, 5, 12)
    found = streams(model, X)
    assert len(found) == 3
    assert found[0] is X
    torch.testing.assert_close(found[2], model.blocks[1](found[1], causal_mask(5)))
    assert not found[2].requires_grad


def test_a_linear_reader_finds_what_is_there_and_no_more():
    X = torch.randn(2000, 6)
    assert read_out(3 + X @ torch.randn(6, 9), X) > 0.999
    assert read_out(X[:, :3], X) == pytest.approx(0.5, abs=0.05)
    noisy = X + torch.randn(2000, 6)
    assert read_out(noisy, X) == pytest.approx(0.5, abs=0.05)
    assert read_out(torch.randn(2000, 6), X) < 0.02
    assert read_out(torch.ones(2000, 4), X) < 0.02
    assert read_out(torch.randn(40, 30), torch.randn(40, 6)) < 0.6  # held out: not memorised


def test_the_identity_is_whole_in_a_sum_and_absent_without_it(double):
    model = deep_model("pre-norm", 3, seed=1, **SMALL)
    X = torch.randn(2, 5, 12)
    for block in model.blocks:
        for last in (block.mha.W_O.weight, block.ffn.W_2.weight):
            nn.init.zeros_(last)
    assert identity_share(model, X, behind=[1, 3]) == pytest.approx([1, 1], abs=1e-12)
    (lost,) = identity_share(deep_model("no residual", 2, seed=1, **SMALL), X, behind=[2])
    assert abs(lost) < 0.1


@pytest.mark.parametrize("kind", ["pre-norm", "post-norm", "adds norm"])
def test_the_identity_share_is_the_trace_of_the_jacobian_averaged_over_the_batch(kind, double):
    model, X = deep_model(kind, 2, seed=1, **SMALL), torch.randn(2, 5, 12)

    def last_token(x, before):
        out = torch.cat([before, x[None]])[None]
        for block in model.blocks:
            out = block(out, causal_mask(5))
        return out[0, -1]

    jacobian = torch.autograd.functional.jacobian
    traces = [jacobian(lambda x, b=text[:-1]: last_token(x, b), text[-1]).trace() for text in X]
    (share,) = identity_share(model, X, behind=[2])
    assert share == pytest.approx(sum(traces).item() / 2 / 12, abs=1e-12)


def test_straightness():
    x = range(10)
    assert straightness(x, [3.0 - 2 * v for v in x]) == pytest.approx(1)
    assert straightness(x, [math.exp(v) for v in x]) < 0.7


def test_gradients_are_those_of_the_loss_before_the_step():
    losses, gradients = first_steps(tiny(), seed=3, steps=3, look_at=(0, 2))
    assert [len(lengths) for lengths in gradients.values()] == [2, 2]
    loss, lengths = by_hand(tiny(), seed=3)
    assert losses[0] == pytest.approx(loss, rel=1e-4)
    assert gradients[0] == pytest.approx(lengths, rel=1e-4)
    assert gradients[2] != gradients[0]


def tiny():
    return deep_model("pre-norm", 2, seed=1)


def by_hand(model, seed):
    ids, counts = next(toy_language().batches(3, 32, torch.Generator().manual_seed(seed)))
    loss = next_token_loss(model(ids), ids, counts)
    loss.backward()
    return loss.item(), [
        math.sqrt(sum(float(p.grad.square().sum()) for p in block.parameters()))
        for block in model.blocks
    ]


def test_clipping_bounds_the_gradient_of_all_blocks_together():
    _, gradients = first_steps(tiny(), seed=3, steps=1, look_at=[0], clip=1e-3)
    assert math.hypot(*gradients[0]) <= 1.001e-3


@pytest.mark.parametrize("kind", KINDS)
def test_first_steps_begin_at_ln_V_say_the_same_twice_and_draw_nothing_from_outside(kind):
    state = torch.get_rng_state()
    one, two = (first_steps(deep_model(kind, 2, seed=4), seed=4, steps=2) for _ in range(2))
    assert torch.equal(state, torch.get_rng_state())
    assert one == two
    assert one.losses[0] == pytest.approx(math.log(len(toy_language().vocabulary)), abs=0.2)
    assert len(one.losses) == 2


class Breaks(nn.Module):
    def __init__(self, after):
        super().__init__()
        self.left = after

    def forward(self, X):
        self.left -= 1
        return X if self.left >= 0 else X * math.nan


def test_a_training_that_breaks_ends_early_but_one_that_cannot_begin_is_refused():
    model = tiny()
    model.norm_final = Breaks(after=2)
    assert len(first_steps(model, seed=31, steps=5).losses) == 2
    model.norm_final = Breaks(after=0)
    with pytest.raises(ValueError, match=r"step 0|finite|NaN"):
        first_steps(model, seed=31, steps=5)
