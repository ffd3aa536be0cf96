import re
from xml.etree import ElementTree

import pytest
import torch

from transformer_block import figures
from transformer_block.figures.picture import SERIES

WORDS = ["苹果", "released", "it"]
A = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0], [0.02, 0.9, 0.08]])


def tree(picture):
    return ElementTree.fromstring(picture._repr_html_())


def texts(picture):
    return [node.text for node in tree(picture).iter() if node.tag.endswith("text")]


def lines(picture, series):
    """Return thickness → number of lines in one of the colours."""
    groups = re.findall(r'<g fill="none" style="stroke:(.*?)">(.*?)</g>', picture.svg)
    drawn = "".join(paths for colour, paths in groups if colour == SERIES[series])
    found = re.findall(r'<path d="([^"]*)" stroke-width="([\d.]+)"', drawn)
    return {float(thick): path.count("M") for path, thick in found}


def test_it_is_well_formed_fits_a_phone_and_says_what_it_shows():
    picture = figures.reading(A, WORDS, lit=2)
    root = tree(picture)
    assert (root.get("role"), root.get("aria-label")) == ("img", picture.alt)
    assert "max-width:100%" in root.get("style")
    assert picture.alt == "it reads released .90, it .08."
    assert figures.reading(A, WORDS, lit=2).svg == picture.svg


def test_each_word_stands_on_both_sides():
    shown = texts(figures.reading(A, WORDS))
    assert shown == ["reads", *WORDS, "is read", *WORDS]


def test_a_weight_is_a_line_and_a_small_one_is_none():
    picture = figures.reading(A, WORDS)
    assert lines(picture, 0) == {5.5: 1, 3.0: 2, 5.0: 1, 1.0: 1}  # 1, two halves, .9, .08; not .02
    assert lines(picture, 1) == {}
    assert picture.alt.endswith("苹果 reads 苹果, released reads 苹果, it reads released.")


def test_a_line_goes_from_the_reader_to_what_it_reads():
    picture = figures.reading([[0.0, 1.0], [0.0, 0.0]], ["a", "b"])
    x, y, to_x, to_y = map(
        float, re.search(r'd="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)"', picture.svg).groups()
    )
    assert x < to_x
    assert y < to_y


def test_the_reader_brought_out_has_its_own_colour_and_numbers():
    picture = figures.reading(A, WORDS, lit=2)
    assert lines(picture, 1) == {5.0: 1, 1.0: 1}
    assert sum(lines(picture, 0).values()) == 3
    assert [t for t in texts(picture) if t.startswith(".")] == [".90", ".08"]


@pytest.mark.parametrize(
    ("weights", "lit", "said"),
    [
        (A[:2], None, "for each of the 3 words"),
        (torch.zeros(3), None, "for each of the 3 words"),
        (A * 2, None, r"0 … 1; these run from 0.0 to 2.0"),
        (-A, None, "these run from -1.0"),
        (A * torch.nan, None, "cannot draw nan"),
        (A, 3, "0 … 2, not 3"),
    ],
)
def test_what_cannot_be_drawn_is_told(weights, lit, said):
    with pytest.raises(ValueError, match=said):
        figures.reading(weights, WORDS, lit=lit)
