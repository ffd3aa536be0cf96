import math

import pytest
import torch
from torch import nn

from transformer_block import LayerNorm, PostNormBlock, causal_mask
from transformer_block.notebook import norm_place
from transformer_block.notebook.norm_place import AddsNormBlock, first_steps, identity_share

n, d_model, h, d_ff = 5, 12, 3, 20


def test_the_misread_block_is_its_two_equations(double):
    block, X, mask = AddsNormBlock(d_model, h, d_ff), torch.randn(2, n, d_model), causal_mask(n)
    H = block.norm_mha(X) + block.mha(block.norm_mha(X), mask)
    torch.testing.assert_close(block(X, mask), block.norm_ffn(H) + block.ffn(block.norm_ffn(H)))


def test_the_misread_block_is_post_norm_with_the_brackets_moved(double):
    wrong, last, X = AddsNormBlock(d_model, h, d_ff), LayerNorm(d_model), torch.randn(2, n, d_model)
    for norm in (wrong.norm_mha, wrong.norm_ffn, last):
        nn.init.normal_(norm.gamma, mean=1)
        nn.init.normal_(norm.beta)
    post = PostNormBlock(d_model, h, d_ff)
    post.mha, post.ffn, post.norm_mha, post.norm_ffn = wrong.mha, wrong.ffn, wrong.norm_ffn, last
    torch.testing.assert_close(last(wrong(X)), post(wrong.norm_mha(X)))


@pytest.mark.parametrize("kind", norm_place.BLOCKS)
def test_the_share_is_the_trace_of_the_jacobian(kind, double):
    (share,) = identity_share(kind, [2], seed=1, n=n, d_model=d_model, n_heads=h)
    torch.manual_seed(1)
    stack = [norm_place.BLOCKS[kind](d_model, h, 4 * d_model) for _ in range(2)]
    X = torch.randn(1, n, d_model)

    def last_token(x):
        out = torch.cat([X[:, :-1], x[None, None]], dim=1)
        for block in stack:
            out = block(out, causal_mask(n))
        return out[0, -1]

    J = torch.autograd.functional.jacobian(last_token, X[0, -1])
    assert share == pytest.approx(J.trace().item() / d_model)


def test_without_sublayers_pre_norm_keeps_the_whole_identity(monkeypatch):
    class Silent(norm_place.PreNormBlock):
        def __init__(self, *sizes):
            super().__init__(*sizes)
            nn.init.zeros_(self.mha.W_O.weight)
            nn.init.zeros_(self.ffn.W_2.weight)

    monkeypatch.setitem(norm_place.BLOCKS, "pre", Silent)
    assert identity_share("pre", [1, 3], seed=2) == [1.0, 1.0]


@pytest.mark.parametrize("kind", norm_place.BLOCKS)
@pytest.mark.parametrize("std", [None, 0.02])
def test_first_steps_begin_at_ln_V_and_say_the_same_twice(kind, std):
    losses, gradients = first_steps(kind, 3, seed=4, std=std, steps=2)
    assert losses[0] == pytest.approx(math.log(216), abs=0.2)
    assert len(losses) == 2
    assert len(gradients) == 3
    assert min(gradients) > 0
    assert (losses, gradients) == first_steps(kind, 3, seed=4, std=std, steps=2)


def test_small_weights_are_small():
    model = nn.Sequential(nn.Linear(50, 60), LayerNorm(60))
    norm_place._draw_small(model, 0.02)
    assert model[0].weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert not model[0].bias.any()
    assert model[1].gamma.eq(1).all()
