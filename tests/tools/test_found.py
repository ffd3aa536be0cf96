import struct
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from docutils import nodes

from book.ext import found, run_here

SITE = "https://someone.example/book/"


@pytest.fixture
def app(tmp_path):
    """What the extension asks of Sphinx, for a site of two pages."""
    config = SimpleNamespace(html_title="The book", html_baseurl=SITE, book_colab="")
    return SimpleNamespace(
        config=config,
        outdir=str(tmp_path),
        builder=SimpleNamespace(format="html", get_relative_uri=lambda page, to: f"../{to}.html"),
        env=SimpleNamespace(found_docs={"chapters/a", "book/b"}),
    )


@pytest.fixture
def page():
    """A page whose first paragraph is longer than a preview shows."""
    whole = nodes.paragraph("", "A question & its <answer>. " + "More words. " * 30)
    return nodes.document(None, None, "", whole)


def described(app, page):
    context = {"title": "<b>A</b> title"}
    found.describe(app, "chapters/a", "page.html", context, page)
    return context["metatags"]


def test_a_page_tells_what_it_says_and_where_it_lies(app, page, tmp_path):
    said = described(app, page)
    assert '<meta property="og:title" content="A title">' in said
    assert 'name="description" content="A question &amp; its &lt;answer&gt;.' in said
    assert f'<meta property="og:url" content="{SITE}chapters/a.html">' in said
    card = tmp_path / "_static" / "cards" / "chapters-a.png"
    assert f'content="{SITE}_static/cards/chapters-a.png"' in said
    data = card.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert struct.unpack(">II", data[16:24]) == found.CARD
    assert len(found.description(page)) <= found.LONGEST


def test_without_an_address_nothing_that_needs_one_is_said_or_drawn(app, page, tmp_path):
    app.config.html_baseurl = ""
    said = described(app, page)
    assert "og:description" in said
    assert "og:url" not in said
    assert "og:image" not in said
    found.list_pages(app, None)
    assert list(tmp_path.iterdir()) == []


def test_the_site_map_lists_every_page_by_its_whole_address(app, tmp_path):
    found.list_pages(app, None)
    tree = ElementTree.fromstring((tmp_path / "sitemap.xml").read_bytes())
    assert [each.text for each in tree.iter() if each.tag.endswith("loc")] == [
        f"{SITE}book/b.html",
        f"{SITE}chapters/a.html",
    ]


@pytest.mark.parametrize("colab", ["", "https://colab.example/github/someone/book/"])
def test_a_chapter_says_under_its_title_how_to_run_it(app, colab):
    app.config.book_colab = colab
    context = {"body": "<h1>A</h1><p>text</p>"}
    run_here.add_line(app, "chapters/a", "", context, None)
    assert context["body"].startswith('<h1>A</h1>\n<p class="tb-run">')
    assert (f'href="{colab}chapters/a.ipynb"' in context["body"]) == bool(colab)
    assert 'href="../book/how-to-read.html#on-your-machine"' in context["body"]
    other = {"body": "<h1>A</h1>"}
    run_here.add_line(app, "book/b", "", other, None)
    assert other == {"body": "<h1>A</h1>"}
