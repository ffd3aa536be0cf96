import math
import re
from xml.etree import ElementTree

import pytest
import torch

from transformer_block import figures


def tree(shown):
    return ElementTree.fromstring(shown._repr_html_())


def texts(shown):
    return ["".join(node.itertext()) for node in tree(shown).iter() if node.tag.endswith("text")]


def lengths(shown):
    """Return how far each bar goes up, strip by strip."""
    bars = re.findall(r'<path d="([^"]*)" style="fill', shown.svg)
    return [[-float(v) for v in re.findall(r"v(-?[\d.]+)h", path)] for path in bars]


TOKENS = {"before <": [3.0, -1.0, 0.0], "after &": torch.tensor([1.5, -1.5, 0.5])}


def test_it_is_well_formed_fits_a_phone_and_says_what_it_shows():
    picture = figures.features(TOKENS, alt="a & <b>")
    root = tree(picture)
    assert (root.get("role"), root.get("aria-label")) == ("img", "a & <b>")
    assert "max-width:100%" in root.get("style")
    assert repr(picture) == "a & <b>"
    assert figures.features(TOKENS, alt="a & <b>").svg == picture.svg


def test_bars_go_up_and_down_to_one_scale_and_their_values_stand_beside_them():
    picture = figures.features(TOKENS, alt="x")
    assert lengths(picture) == [[54, -18, 0], [27, -27, 9]]
    assert texts(picture) == ["before <", "3.0", "-1.0", "0.0", "after &", "1.5", "-1.5", "0.5"]
    assert figures.features(TOKENS, alt="x", form=".0f").svg.count(">3<") == 1


def test_a_bar_beyond_the_span_is_cut_and_its_value_kept():
    picture = figures.features({"t": [8.0, -8.0, 1.0]}, span=2, alt="x")
    assert lengths(picture) == [[54, -54, 27]]
    assert "8.0" in texts(picture)


def test_with_a_span_every_picture_has_the_same_height():
    heights = {
        tree(figures.features({"t": values}, span=2, alt="x")).get("viewBox")
        for values in ([1.0, 2.0], [-1.0, -2.0], [0.0, 0.0])
    }
    assert len(heights) == 1
    short = tree(figures.features({"t": [1.0, 2.0]}, alt="x")).get("viewBox")
    assert float(short.split()[3]) < float(heights.pop().split()[3])


def test_everything_stays_inside_the_drawing():
    for values in ([1.0, 0.5], [-1.0, -0.5], [1.0, -1.0], [0.0, 0.0]):
        picture = figures.features({"t": values, "u": values}, alt="x")
        tall = float(tree(picture).get("viewBox").split()[3])
        ys = [float(y) for y in re.findall(r' y="(-?[\d.]+)"', picture.svg)]
        assert min(ys) >= 10
        assert max(ys) <= tall


@pytest.mark.parametrize(
    ("tokens", "says"),
    [
        ({}, "one token or more"),
        ({"t": []}, "one token or more"),
        ({"t": [1.0, math.inf]}, "at 't', cannot draw inf"),
    ],
)
def test_bad_input_is_told_clearly(tokens, says):
    with pytest.raises(ValueError, match=says):
        figures.features(tokens, alt="x")
