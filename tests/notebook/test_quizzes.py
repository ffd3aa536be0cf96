import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from transformer_block.notebook import Question, quiz

FIRST = Question("Is 1 < 2?", [("yes & so", "As <b> it is."), ("no", "Count again.")], right=0)
SECOND = Question("Which?", [("a", "No."), ("b", "Nor."), ("c", "Yes.")], right=2)


def tree(shown):
    return ElementTree.fromstring(shown._repr_html_())


class Seen(HTMLParser):
    """Read a page as a viewer shows it that throws away styles, scripts and all attributes."""

    def __init__(self, page):
        super().__init__()
        self.text, self.open = "", []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        folded = "details" in self.open and "summary" not in self.open
        if not folded and not {"style", "script"} & set(self.open):
            self.text += data


def gives_nothing_away(page):
    """Fail if a word about an option can be read before it is chosen, or texts run together."""
    seen = Seen(re.sub(r"(<[a-z]+)[^>]*?(/?>)", r"\1\2", page)).text
    assert " ".join(seen.split()) == "1. Is 1 < 2? yes & so no 2. Which? a b c"


def test_it_gives_nothing_away_where_styles_and_attributes_are_stripped():
    gives_nothing_away(quiz([FIRST, SECOND])._repr_html_())


@pytest.mark.parametrize(
    ("old", "new"),
    [("<details>", "<div>"), ("</summary>", " (right)</summary>"), ("</p>\n<ul", "</p><ul")],
)
def test_that_test_finds_what_gives_away_or_runs_together(old, new):
    page = quiz([FIRST, SECOND])._repr_html_().replace(old, new)
    page = page.replace("</details>", "</div>") if "div" in new else page.replace("\n", "")
    with pytest.raises(AssertionError):
        gives_nothing_away(page)


def test_nothing_tells_the_right_option_from_the_others_before_it_is_chosen():
    page = quiz([FIRST, SECOND])._repr_html_()
    summaries = re.findall(r"<li>(<details.*?>.*?</summary>)", page, re.DOTALL)
    assert len({re.sub(r">[^<]*</summary>", "", summary) for summary in summaries}) == 1
    assert len(summaries) == 5
    assert not re.search(r"<details[^>]*\bopen", page)


def test_it_is_plain_html_with_no_script_no_style_sheet_and_no_request():
    text = quiz([FIRST, SECOND])._repr_html_()
    assert not re.search(r"<script|<style|onclick|https?:|url\(|@import|\$|id=", text)
    tree(quiz([FIRST, SECOND]))


def test_each_option_is_a_fold_that_says_whether_it_is_right():
    page = tree(quiz([FIRST, SECOND]))
    folds = [["".join(part.itertext()) for part in fold] for fold in page.iter("details")]
    assert folds == [
        ["yes & so", "Right. As <b> it is."],
        ["no", "Not so. Count again."],
        ["a", "Not so. No."],
        ["b", "Not so. Nor."],
        ["c", "Right. Yes."],
    ]
    assert [len(list(options)) for options in page.iter("ul")] == [2, 3]


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
