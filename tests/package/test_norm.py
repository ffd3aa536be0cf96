import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from transformer_block import LayerNorm, RMSNorm
from transformer_block.norm import NORMS, norm_named

B, n, d_model = 2, 5, 12


def layer_norm_is_right(norm):
    """The pencil's numbers, torch's module with drawn γ and β, and the ε of a tiny input."""
    y = norm(torch.tensor([1.0, 0, 0, 0]), torch.ones(4), torch.zeros(4), 0.0)
    torch.testing.assert_close(y, torch.tensor([3.0, -1, -1, -1]) / math.sqrt(3))
    gamma, beta = torch.randn(d_model), torch.randn(d_model)
    theirs = nn.LayerNorm(d_model, eps=1e-3)
    theirs.load_state_dict({"weight": gamma, "bias": beta})
    for scale in (3.0, 1e-3):
        X = torch.randn(B, n, d_model) * scale + 2
        torch.testing.assert_close(norm(X, gamma, beta, 1e-3), theirs(X))


def ours(X, gamma, beta, eps, form="forward"):
    norm = LayerNorm(len(gamma), eps=eps)
    norm.load_state_dict({"gamma": gamma, "beta": beta})
    return getattr(norm, form)(X)


def test_layer_norm_is_right(double):
    layer_norm_is_right(ours)


def test_layer_norm_by_hand_is_the_same(double):
    layer_norm_is_right(lambda *args: ours(*args, form="by_hand"))


def test_mistaken_layer_norms_are_caught(double, caught):
    def form(axis=-1, unbiased=False, inside=True, swapped=False):
        def norm(X, gamma, beta, eps):
            mu = X.mean(axis, keepdim=True)
            var = X.var(axis, unbiased=unbiased, keepdim=True)
            root = (var + eps).sqrt() if inside else var.sqrt() + eps
            g, b = (beta, gamma) if swapped else (gamma, beta)
            return g * (X - mu) / root + b

        return norm

    layer_norm_is_right(form())
    caught(
        layer_norm_is_right,
        form(unbiased=True),
        form(inside=False),
        form(swapped=True),
        form(axis=0),
    )


def test_rms_norm_is_torchs(double):
    norm, theirs = RMSNorm(d_model, eps=1e-3), nn.RMSNorm(d_model, eps=1e-3)
    gamma, X = torch.randn(d_model), torch.randn(B, n, d_model) + 1
    norm.load_state_dict({"gamma": gamma})
    theirs.load_state_dict({"weight": gamma})
    torch.testing.assert_close(norm(X), theirs(X))
    torch.testing.assert_close(norm.by_hand(X), theirs(X))
    assert (norm(X) - norm(X - X.mean(-1, keepdim=True))).abs().max() > 0.1  # the mean stays


@pytest.mark.parametrize("Norm", [LayerNorm, RMSNorm])
def test_no_token_hears_another(Norm):
    X = torch.randn(B, n, d_model)
    changed = X.clone()
    changed[:, -1] = 9
    assert torch.equal(Norm(d_model)(X)[:, :-1], Norm(d_model)(changed)[:, :-1])


@given(a=st.floats(0.1, 10), b=st.floats(-5, 5))
def test_scale_and_shift_vanish(a, b):
    X = torch.randn(3, 7, dtype=torch.float64)
    norm = LayerNorm(7, eps=0.0).double()
    torch.testing.assert_close(norm(a * X + b), norm(X))


@pytest.mark.parametrize("Norm", [LayerNorm, RMSNorm])
def test_gradients_are_right(Norm, double):
    X = torch.randn(2, 5, requires_grad=True)
    assert torch.autograd.gradcheck(Norm(5), X)
    assert torch.autograd.gradcheck(Norm(5).by_hand, X)


@pytest.mark.usefixtures("as_a_reader")
@pytest.mark.parametrize("Norm", [LayerNorm, RMSNorm])
def test_bad_input_is_told_clearly(Norm):
    with pytest.raises(ValueError, match="d_model must be a whole number"):
        Norm(0)
    with pytest.raises(ValueError, match="d_model = 12 features"):
        Norm(d_model)(torch.ones(2, 11))
    with pytest.raises(ValueError, match="1 values that are not finite"):
        Norm(d_model)(torch.ones(d_model).index_fill(0, torch.tensor([3]), math.inf))
    with pytest.raises(ValueError, match="floating-point"):
        Norm(d_model)(torch.ones(2, d_model, dtype=torch.int))


def test_large_but_finite_numbers_pass():
    X = torch.full((3, d_model), 3e38)
    assert LayerNorm(d_model)(X).isfinite().all()


@pytest.mark.parametrize("Norm", [LayerNorm, RMSNorm])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_by_hand_does_not_overflow_where_forward_does_not(Norm, dtype):
    X = torch.tensor([[300.0, -300, 300, -300], [1, 2, 3, -7]], dtype=dtype)
    norm = Norm(4).to(dtype)
    assert norm.by_hand(X).dtype == dtype
    torch.testing.assert_close(norm.by_hand(X), norm(X))
    assert norm(X)[0].tolist() == [1, -1, 1, -1]


def test_epsilon_is_a_hundred_thousandth_unless_given():
    assert [Norm(3).eps for Norm in (LayerNorm, RMSNorm)] == [1e-5, 1e-5]
    assert [Norm(3, 0.1).eps for Norm in (LayerNorm, RMSNorm)] == [0.1, 0.1]


def test_norms_are_chosen_by_name():
    assert {name: norm_named(name) for name in NORMS} == {"layer": LayerNorm, "rms": RMSNorm}
    with pytest.raises(ValueError, match="norm must be one of layer, rms, not 'batch'"):
        norm_named("batch")
