"""The PDF of the book: links and numbers that lead to the right page, and no word lost."""

import io
from pathlib import Path

import pytest
from pypdf import PdfReader

from book.tools import pdf
from book.tools.browser import HOW_TO_GET_ONE, find_chromium
from book.tools.common import Problem

BOOK = [pdf.Part("", ("book/one",)), pdf.Part("More", ("chapters/two",))]
LONG = f"long = {' + '.join(['a line that no paper is wide enough for'] * 5)}"
ONE = """# One

Both pages have a *place*, and 天气 in it: see [the other's](../chapters/two.md#place), at $x$.

## Place

| a cell | another |
|---|---|
| W_O | γ |

```python
LONG
```
""".replace("LONG", LONG)
TWO = "# Two\n\nThe second page.\n\n## Place\n\nIts own place.\n"
HEAD = '<html><head><link rel="stylesheet" href="../_static/book.css?v=1"></head>'
PAGES = {
    "book/one": HEAD
    + """<article class="bd-article"><section id="one"><h1>One<a class="headerlink">#</a></h1>
<p>Both pages have a <em>place</em>, and <span lang="zh">天气</span> in it: see
<a href="../chapters/two.html#place">the other’s</a>, at x.</p>
<section id="place"><h2>Place</h2>
<table><tr><th>a cell<th>another<tr><td>W_O<td>γ</table>
<details><summary>Folded</summary><div class="highlight"><pre>LONG</pre></div></details>
<a href="../genindex.html">index</a>
<a href="#place">here</a></section></section></article>""".replace("LONG", LONG),
    "chapters/two": HEAD
    + """<article class="bd-article"><section id="two"><h1>Two</h1><p>The second page.</p>
<section id="place"><h2>Place</h2><p>Its own place.</p></section></section></article>""",
}


@pytest.fixture
def html(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A built book of two pages with the book's own style, and its sources beside it."""
    folder = tmp_path / "html"
    for name, page in PAGES.items():
        (folder / name).parent.mkdir(parents=True)
        (folder / f"{name}.html").write_text(page, encoding="utf-8")
    (folder / "_static").mkdir()
    style = (pdf.CONFIG.parent / "book" / "static" / "book.css").read_text(encoding="utf-8")
    (folder / "_static" / "book.css").write_text(style, encoding="utf-8")
    for name, text in {"book/one": ONE, "chapters/two": TWO}.items():
        (tmp_path / f"{Path(name).name}.md").write_text(text, encoding="utf-8")
    monkeypatch.setattr(pdf, "source_of", lambda name: tmp_path / f"{Path(name).name}.md")
    return folder


@pytest.fixture
def needs_chromium() -> None:
    with pdf.sync_playwright() as playwright:
        if find_chromium(playwright) is None:
            pytest.skip(HOW_TO_GET_ONE)


@pytest.mark.usefixtures("needs_chromium")
def test_it_is_whole_linked_numbered_and_the_same_each_time(html: Path, tmp_path: Path) -> None:
    place = tmp_path / "book.pdf"
    papers = pdf.make(html, BOOK, place)
    content = place.read_bytes()
    reader = PdfReader(io.BytesIO(content))
    assert papers == len(reader.pages) == 4  # title, contents, one, two
    texts = [paper.extract_text() for paper in reader.pages]
    numbers = pdf.page_numbers(reader)
    assert numbers["book-one--place"] == 3  # two places of one name, each with its own page
    assert numbers["chapters-two--place"] == 4
    assert "More\nTwo 4\nPlace 4" in texts[1]
    assert texts[3].splitlines()[-1] == "4"  # at the foot
    links = [
        annotation.get_object() for paper in reader.pages for annotation in paper.get("/Annots", [])
    ]
    assert [str(link["/Dest"]) for link in links[-2:]] == [
        "/chapters-two--place",
        "/book-one--place",
    ]
    assert not [link for link in links if "/A" in link]  # nothing that leads to this disk
    assert "Folded" in texts[2]
    assert [entry.title for entry in reader.outline if not isinstance(entry, list)]
    pdf.make(html, BOOK, place)
    assert place.read_bytes() == content


@pytest.mark.usefixtures("needs_chromium")
def test_what_leaves_the_paper_is_refused(html: Path, tmp_path: Path) -> None:
    with (html / "_static" / "book.css").open("a") as style:
        style.write("html body .bd-article .highlight pre { white-space: pre !important; }")
    with pytest.raises(Problem, match="lose their right end on paper"):
        pdf.make(html, BOOK, tmp_path / "book.pdf")
    assert not (tmp_path / "book.pdf").exists()


@pytest.mark.parametrize("gone", ["The second page.", "another", "天气", "wide enough", "γ"])
def test_what_is_lost_is_named(tmp_path: Path, gone: str) -> None:
    source = tmp_path / "one.md"
    source.write_text(ONE + TWO, encoding="utf-8")
    paper = (ONE + TWO).replace("the other's", "the\nother’s").replace("paper", "pa\nper")
    assert pdf.lost(source, [paper]) == []
    missing = pdf.lost(source, [paper.replace(gone, "")])
    assert len(missing) == 1
    assert gone in missing[0]


def test_a_run_of_words_may_go_on_on_the_next_paper_but_on_no_other() -> None:
    assert pdf.is_there("abcd", ["xab", "cdx"])
    assert not pdf.is_there("abcd", ["xab", "x", "cdx"])


@pytest.mark.parametrize(
    ("link", "leads"),
    [
        ("https://example.org/a.html#b", "https://example.org/a.html#b"),
        ("#play", "#chapters-two--play"),
        ("../book/one.html", "#book-one--"),
        ("../book/one.html#%E5%A4%A9", "#book-one--天"),
        ("../genindex.html", None),
        ("../_modules/a.html#b", None),
    ],
)
def test_links_lead_into_the_joined_book(link: str, leads: str | None) -> None:
    assert pdf._link(link, "chapters/two", frozenset({"book/one", "chapters/two"})) == leads


def test_every_page_of_the_contents_is_printed() -> None:
    from book.tools.publish import pages

    assert [page for part in pdf.parts() for page in part.pages] == pages()
