"""No word, line of code or line of output of a source is lost on its page."""

from pathlib import Path

import pytest

from book.tools import pdf
from book.tools.publish import pages, source_of


@pytest.mark.parametrize("name", pages())
def test_the_page_says_all_that_its_source_says(book: Path, name: str) -> None:
    text = pdf.article(book, name, frozenset()).get_text()
    assert pdf.lost(source_of(name), [text]) == []
