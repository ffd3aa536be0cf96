import math
import re
from xml.etree import ElementTree

import pytest
import torch

from transformer_block import figures
from transformer_block.figures.picture import SERIES

torch.manual_seed(4)
DENSE = torch.randn(5, 12)
BLOCKS = torch.block_diag(*torch.ones(3, 4, 4))


def tree(shown):
    return ElementTree.fromstring(shown._repr_html_())


def texts(shown):
    return ["".join(node.itertext()) for node in tree(shown).iter() if node.tag.endswith("text")]


def counts(shown):
    group = next(node for node in tree(shown).iter() if node.tag.endswith("}g"))
    return [int(node.text) for node in group]


def filled(shown, head):
    """Add up the area that one head's colour covers, in cells."""
    area = 0.0
    colour = re.escape(SERIES[head])
    for path in re.findall(rf'<path d="([^"]*)" style="fill:{colour}', shown.svg):
        area += sum(float(w) * float(t) for w, t in re.findall(r"h([\d.]+)v([\d.]+)", path))
    return round(area / 24**2)


@pytest.mark.parametrize("J", [DENSE, BLOCKS], ids=["dense", "blocks"])
def test_it_is_well_formed_fits_a_phone_and_says_what_it_shows(J):
    picture = figures.dependence(J, 3)
    root = tree(picture)
    assert (root.get("role"), root.get("aria-label")) == ("img", picture.alt)
    assert "max-width:100%" in root.get("style")
    assert repr(picture) == picture.alt
    assert figures.dependence(J, 3).svg == picture.svg


def test_it_counts_the_heads_of_each_coordinate():
    assert counts(figures.dependence(DENSE, 3)) == [3] * 5
    assert counts(figures.dependence(DENSE, 4)) == [4] * 5
    assert counts(figures.dependence(BLOCKS, 3)) == [1] * 12
    mixed = BLOCKS.clone()
    mixed[2, 7], mixed[11] = -0.1, 0.0
    picture = figures.dependence(mixed, 3)
    assert counts(picture) == [1, 1, 2, *[1] * 8, 0]
    assert picture.alt.endswith("each coordinate depends on 0 to 2 heads.")
    assert figures.dependence(DENSE, 1).alt == (
        "5 coordinates and the reports of 1 head: each coordinate depends on 1 head."
    )


def test_each_head_has_its_colour_and_zero_stays_empty():
    picture = figures.dependence(BLOCKS, 3, width=1000)
    assert [filled(picture, head) for head in range(3)] == [16, 16, 16]
    one = BLOCKS.clone()
    one[:, 4:] = 0
    assert [filled(figures.dependence(one, 3, width=1000), head) for head in range(3)] == [16, 0, 0]
    assert [filled(figures.dependence(DENSE, 3, width=1000), head) for head in range(3)] == [20] * 3


def test_a_small_derivative_still_shows_and_the_sign_does_not_matter():
    tiny = torch.full((2, 4), 1e-6)
    tiny[0, 0] = 1
    assert filled(figures.dependence(tiny, 2, width=1000), 1) == 4
    assert figures.dependence(-DENSE, 3).svg == figures.dependence(DENSE, 3).svg


def test_heads_are_named_where_there_is_room():
    assert {"head 1", "head 3"} <= set(texts(figures.dependence(torch.ones(12, 12), 3)))
    many = texts(figures.dependence(torch.ones(24, 24), 12))
    assert "head 1" not in many
    assert "12" in many


def test_it_is_small_enough_for_a_widget():
    assert len(figures.dependence(torch.randn(24, 24), 4).svg) < 16_000


@pytest.mark.parametrize(
    ("J", "n_heads", "says"),
    [
        (DENSE, 5, "5 heads cannot share 12 columns evenly"),
        (DENSE, 0, "0 heads cannot share"),
        ([[1.0, 2.0], [1.0]], 1, "all of one length"),
        ([], 1, "needs a matrix"),
        (DENSE[0], 1, "needs a matrix"),
        ([[math.nan, 1.0]], 2, "cannot draw nan"),
    ],
)
def test_bad_input_is_told_clearly(J, n_heads, says):
    with pytest.raises(ValueError, match=says):
        figures.dependence(J, n_heads)
