import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from transformer_block import ACTIVATIONS, FeedForward, SwiGLU
from transformer_block.feed_forward import FFNS, ffn_named

B, n, d_model, d_ff = 2, 5, 12, 20
TORCHS = {
    "relu": nn.ReLU(), "gelu": nn.GELU(), "gelu_tanh": nn.GELU(approximate="tanh"),
    "silu": nn.SiLU(), "identity": nn.Identity(),
}  # fmt: skip


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_it_is_torchs_two_layers(activation, double):
    ffn, X = FeedForward(d_model, d_ff, activation), torch.randn(B, n, d_model)
    theirs = nn.Sequential(ffn.W_1, TORCHS[activation], ffn.W_2)
    torch.testing.assert_close(ffn(X), theirs(X))


def test_gelu_says_which():
    x = torch.tensor(3.0, dtype=torch.float64)
    assert ACTIVATIONS["gelu"](x).item() == pytest.approx(2.99595, abs=1e-5)
    assert ACTIVATIONS["gelu_tanh"](x).item() == pytest.approx(2.99636, abs=1e-5)


def test_swiglu_gates(double):
    ffn, X = SwiGLU(d_model, d_ff), torch.randn(B, n, d_model)
    gate, up = X @ ffn.W_gate.weight.T, X @ ffn.W_1.weight.T
    torch.testing.assert_close(ffn(X), (gate * gate.sigmoid() * up) @ ffn.W_2.weight.T)
    assert not torch.allclose(ffn(X), (F.silu(up) * gate) @ ffn.W_2.weight.T)  # the gate is W_gate


@pytest.mark.parametrize("part", [FeedForward(d_model, d_ff), SwiGLU(d_model, d_ff)])
def test_every_position_alone_by_the_same_weights(part):
    X = torch.randn(B, n, d_model)
    order = torch.tensor([3, 1, 4, 0, 2])
    torch.testing.assert_close(part(X[:, order]), part(X)[:, order])
    one_by_one = torch.stack([part(X[:, i]) for i in range(n)], dim=1)
    torch.testing.assert_close(part(X), one_by_one)


@pytest.mark.parametrize("activation", [*ACTIVATIONS, "swiglu"])
def test_gradients_are_right(activation, double):
    part = SwiGLU(3, 5) if activation == "swiglu" else FeedForward(3, 5, activation)
    X = torch.randn(2, 3, requires_grad=True)
    assert torch.autograd.gradcheck(part, X)


@pytest.mark.usefixtures("as_a_reader")
def test_bad_input_is_told_clearly():
    with pytest.raises(ValueError, match=r"activation must be one of relu, gelu, .*not 'tanh'"):
        FeedForward(d_model, d_ff, "tanh")
    for Part in (FeedForward, SwiGLU):
        with pytest.raises(ValueError, match="d_ff must be a whole number of at least 1, not 0"):
            Part(d_model, 0)
        with pytest.raises(ValueError, match="d_model = 12 features"):
            Part(d_model, d_ff)(torch.ones(B, n, d_ff))
        with pytest.raises(ValueError, match="not finite"):
            Part(d_model, d_ff)(torch.full((n, d_model), math.nan))


def test_ffns_are_chosen_by_name():
    assert list(FFNS) == [*ACTIVATIONS, "swiglu"]
    for name in FFNS:
        ffn = ffn_named(name)(d_model, d_ff)
        assert isinstance(ffn, SwiGLU if name == "swiglu" else FeedForward)
        assert ffn.W_2.weight.shape == (d_model, d_ff)
        if name != "swiglu":
            assert ffn.activation is ACTIVATIONS[name]
    with pytest.raises(ValueError, match=r"one of relu, .*, identity, swiglu, not 'tanh'"):
        ffn_named("tanh")


@pytest.mark.parametrize("name", FFNS)
def test_every_ffn_can_be_pickled(name):
    ffn, X = ffn_named(name)(d_model, d_ff), torch.randn(B, n, d_model)
    assert torch.equal(pickle.loads(pickle.dumps(ffn))(X), ffn(X))
