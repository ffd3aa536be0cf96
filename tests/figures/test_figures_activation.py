"""The curve of an activation, its derivative, and the line nearest to it."""

import pytest

from transformer_block import figures
from transformer_block.figures.activation_plot import _best_line


def test_the_line_of_relu_is_half_the_input_at_any_scale():
    for scale in (0.1, 1.0, 7.0):
        slope, height, left = _best_line("relu", scale)
        assert slope == pytest.approx(0.5, abs=1e-6)
        assert height == pytest.approx(scale / (2 * 3.14159265) ** 0.5, rel=1e-3)
        assert left == pytest.approx(0.267, abs=1e-3)  # 1 − (1/4) / (1/2 − 1/2π)


def test_a_straight_activation_is_its_own_line():
    slope, height, left = _best_line("identity", 2.0)
    assert (slope, height, left) == pytest.approx((1, 0, 0), abs=1e-6)


def test_smooth_ones_look_straight_from_near_and_relu_does_not():
    for name in ("gelu", "silu"):
        assert _best_line(name, 0.1)[2] < 0.03 < 0.2 < _best_line(name, 4.0)[2]


def test_the_picture_says_what_it_shows():
    shown = figures.activation("gelu", 0.5)
    assert "17 %" in repr(shown)
    assert "GELU for inputs of scale 0.5" in repr(shown)
    assert shown._repr_html_().count('role="img"') == 2
    assert "from 0.00 to 1.00" in repr(figures.activation("relu"))


def test_impossible_requests_are_refused():
    with pytest.raises(ValueError, match="must be one of"):
        figures.activation("tanh")
    with pytest.raises(ValueError, match="above 0"):
        figures.activation("relu", 0.0)
