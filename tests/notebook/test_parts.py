import pytest
import torch

from transformer_block.notebook.parts import (
    ResidualNet,
    curve,
    fit,
    fit_one_by_one,
    fit_together,
)


def test_the_curve_has_variance_one_and_depends_on_its_seed():
    x, y = curve(1)
    assert x.shape == y.shape == (200, 1)
    assert float(y.mean()) == pytest.approx(0, abs=1e-6)
    assert float(y.var(unbiased=False)) == pytest.approx(1, abs=1e-5)
    assert torch.equal(x, curve(1)[0])
    assert not torch.equal(x, curve(2)[0])


def test_errors_are_read_off_behind_each_part():
    net, (x, y) = ResidualNet(3), curve(1)
    X = net.W_in(x)
    for F, error in zip(net.parts, net.errors(x, y), strict=True):
        X = X + F(X)
        assert error == pytest.approx(float((y - net.w(X)).square().mean().detach()))
    assert torch.equal(net(x), net(x, 3))


def test_a_later_part_is_fitted_to_the_error_left_and_moves_nothing_else(double):
    net, (x, y) = ResidualNet(2), (T.double() for T in curve(1))
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
    from transformer_block.notebook import parts

    calls = []
    monkeypatch.setattr(
        parts, "fit", lambda net, x, y, learning, n=None: calls.append((len(list(learning)), n))
    )
    net = ResidualNet(3)
    fit_one_by_one(net, *curve(1))
    fit_together(net, *curve(1))
    assert calls == [(8, 1), (4, 2), (4, 3), (16, None)]
