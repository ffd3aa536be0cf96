import math

import pytest
import torch
from torch import nn

from transformer_block import LanguageModel, PostNormBlock, PreNormBlock, causal_mask
from transformer_block.ablate import NoResidual
from transformer_block.notebook import depth
from transformer_block.notebook.depth import deep_model, gradients_by_block, read_out, streams


@pytest.mark.parametrize("kind", depth.KINDS)
def test_a_stack_has_its_blocks_and_depends_on_its_seed_alone(kind):
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    model = deep_model(kind, 3, seed=1, d_model=12, n_heads=3)
    assert torch.equal(before, torch.random.get_rng_state())
    torch.manual_seed(6)
    again, other = (deep_model(kind, 3, seed=s, d_model=12, n_heads=3) for s in (1, 2))
    assert len(model.blocks) == 3
    assert model.config.d_ff == 48
    assert all(map(torch.equal, model.parameters(), again.parameters()))
    assert not torch.equal(model.E.weight, other.E.weight)


def test_each_kind_is_what_it_is_called():
    kinds = {kind: deep_model(kind, 1, seed=1).blocks[0] for kind in depth.KINDS}
    assert [type(block) for block in kinds.values()] == [
        PreNormBlock,
        PostNormBlock,
        PreNormBlock,
        NoResidual,
        NoResidual,
    ]
    for kind, block in kinds.items():
        assert isinstance(block.norm_mha, nn.Identity) == ("no norms" in kind)
        assert isinstance(block.norm_ffn, nn.Identity) == ("no norms" in kind)


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match=r"pre-norm, post-norm, .* not 'deep'"):
        deep_model("deep", 3, seed=1)


def test_streams_are_those_of_the_model():
    model = deep_model("pre-norm", 2, seed=1, d_model=12, n_heads=3)
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
    model = deep_model("pre-norm", 2, seed=1, d_model=12, n_heads=3)
    X = torch.randn(2, 5, 12)
    for block in model.blocks:
        for last in (block.mha.W_O.weight, block.ffn.W_2.weight):
            nn.init.zeros_(last)
    assert depth.identity_part(model, X) == pytest.approx(1, abs=1e-12)
    assert (
        abs(depth.identity_part(deep_model("no residual", 2, seed=1, d_model=12, n_heads=3), X))
        < 0.1
    )


def test_the_identity_part_is_the_trace_of_the_jacobian(double):
    model = deep_model("pre-norm", 1, seed=1, d_model=12, n_heads=3)
    X = torch.randn(1, 5, 12)
    J = torch.autograd.functional.jacobian(lambda X: model.blocks[0](X, causal_mask(5)), X)
    trace = J[0, -1, :, 0, -1].trace()
    assert depth.identity_part(model, X) == pytest.approx(trace.item() / 12, abs=1e-12)


def test_straightness():
    x = range(10)
    assert depth.straightness(x, [3.0 - 2 * v for v in x]) == pytest.approx(1)
    assert depth.straightness(x, [math.exp(v) for v in x]) < 0.7


def test_gradients_are_those_of_the_loss_before_the_step():
    kept = gradients_by_block(deep_model("pre-norm", 2, seed=1), seed=3, steps=(0, 2))
    assert [len(lengths) for lengths in kept.values()] == [2, 2]
    again = gradients_by_block(deep_model("pre-norm", 2, seed=1), seed=3, steps=(0,))
    assert again == {0: kept[0]}
    slow = gradients_by_block(deep_model("pre-norm", 2, seed=1), seed=3, steps=(0,), lr=1e-9)
    assert slow == again  # taken before the weights move

    model: LanguageModel = deep_model("pre-norm", 2, seed=1)
    assert kept[0] == pytest.approx(by_hand(model, seed=3), rel=1e-4)


def by_hand(model, seed):
    from transformer_block.toy_language import toy_language
    from transformer_block.train import next_token_loss

    generator = torch.Generator().manual_seed(seed)
    ids, counts = next(toy_language().batches(3, 32, generator))
    next_token_loss(model(ids), ids, counts).backward()
    return [
        math.sqrt(sum(float(p.grad.square().sum()) for p in block.parameters()))
        for block in model.blocks
    ]
