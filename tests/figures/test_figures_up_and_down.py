"""The width of a token on its way through the FFN, and what was measured at that width."""

import re

import pytest

from transformer_block import figures
from transformer_block.feed_forward import FeedForward

BOUGHT = {"planes": {"GELU": [0.4, 0.5, 0.6], "no σ": [0.0, 0.0, 0.02]}}


def test_bars_of_width_are_to_scale():
    svg = figures.up_and_down(8, 24, BOUGHT, widest=32).svg
    long = [float(x) for x in re.findall(r"h([\d.]+)v24h", svg)]
    assert long == pytest.approx([8 * 398 / 32, 24 * 398 / 32, 8 * 398 / 32], abs=0.06)


def test_parameters_are_those_of_the_layer():
    count = sum(p.numel() for p in FeedForward(8, 24).parameters())
    assert f"{count:,} parameters" in figures.up_and_down(8, 24, BOUGHT).svg


def test_the_text_tells_the_means_and_the_mark_is_named():
    shown = figures.up_and_down(8, 24, BOUGHT, {"planes": ("Cover", 0.5)})
    assert repr(shown) == (
        "8 features, up to 24, down to 8. planes, GELU: 0.50; planes, no σ: 0.01."
    )
    assert ">Cover</text>" in shown.svg


@pytest.mark.parametrize("shares", [[], [0.2, 1.2], [-0.1]])
def test_what_is_no_share_is_refused(shares):
    with pytest.raises(ValueError, match="from 0 to 1"):
        figures.up_and_down(8, 24, {"planes": {"GELU": shares}})
