import re
from xml.etree import ElementTree

import pytest

from transformer_block.notebook import Question, quiz

FIRST = Question("Is 1 < 2?", [("yes & so", "As <b> it is."), ("no", "Count again.")], right=0)
SECOND = Question("Which?", [("a", "No."), ("b", "No."), ("c", "Yes.")], right=2)


def tree(shown):
    return ElementTree.fromstring(shown._repr_html_())


def test_it_is_plain_html_with_no_script_and_no_request():
    text = quiz([FIRST, SECOND])._repr_html_()
    assert not re.search(r"<script|onclick|https?:|url\(|@import|\$", text)
    tree(quiz([FIRST, SECOND]))


def test_each_option_has_its_button_label_and_word():
    page = tree(quiz([FIRST, SECOND]))
    buttons, labels = list(page.iter("input")), list(page.iter("label"))
    assert [b.get("id") for b in buttons] == [label.get("for") for label in labels]
    assert len({b.get("id") for b in buttons}) == 5
    assert [
        len([b for b in buttons if b.get("name") == n])
        for n in dict.fromkeys(b.get("name") for b in buttons)
    ] == [2, 3]
    assert [b.get("class") for b in buttons] == ["tb-right", None, None, None, "tb-right"]
    said = ["".join(p.itertext()) for p in page.iter("p")]
    assert said == [
        "Right. As <b> it is.",
        "Not so. Count again.",
        "Not so. No.",
        "Not so. No.",
        "Right. Yes.",
    ]
    assert [legend.text for legend in page.iter("legend")] == ["1. Is 1 < 2?", "2. Which?"]


def test_it_is_the_same_in_every_run_and_reads_as_text():
    assert quiz([FIRST])._repr_html_() == quiz([FIRST])._repr_html_()
    assert repr(quiz([SECOND])) == "1. Which?\n   a) a\n   b) b\n   c) c"


def test_bad_questions_are_refused():
    with pytest.raises(ValueError, match="2 to 8 options; 'x' has 1"):
        Question("x", [("a", "b")], right=0)
    with pytest.raises(ValueError, match="counted from 0; 2 is none"):
        Question("x", [("a", "b"), ("c", "d")], right=2)
    with pytest.raises(ValueError, match="each another"):
        quiz([FIRST, FIRST])
    with pytest.raises(ValueError, match="each another"):
        quiz([])
