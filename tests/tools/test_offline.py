"""The zip of the book: every page, nothing that needs a server, the same bytes each time."""

import zipfile
from pathlib import Path

import pytest

from book.tools import offline, publish
from book.tools.common import Problem

PAGE = '<link rel="stylesheet" href="../_static/a.css"><a href="https://example.org/">source</a>'


@pytest.fixture
def html(tmp_path: Path) -> Path:
    """A book as it lies in _build, with a page for each of the table of contents."""
    folder = tmp_path / "html"
    for page in [*publish.pages(), "search", "genindex", "index"]:
        (folder / page).parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{page}.html").write_text(PAGE)
    (folder / "_static").mkdir()
    (folder / "_static" / "a.css").write_text("@font-face { src: url(fonts/a.woff2) }")
    (folder / "sitemap.xml").touch()
    return folder


def test_it_holds_every_page_and_only_what_a_disk_can_use(html: Path, tmp_path: Path) -> None:
    place = tmp_path / "book.zip"
    assert offline.pack(html, place) == place.stat().st_size
    names = set(zipfile.ZipFile(place).namelist())
    for page in [*publish.pages(), "search", "genindex", "index"]:
        assert f"{offline.INSIDE}/{page}.html" in names
    assert f"{offline.INSIDE}/_static/a.css" in names
    assert not [name for name in names if name.endswith("sitemap.xml")]


def test_the_same_book_makes_the_same_bytes(html: Path, tmp_path: Path) -> None:
    places = tmp_path / "one.zip", tmp_path / "two.zip"
    offline.pack(html, places[0])
    for path in html.rglob("*.html"):  # other times, other rights
        path.touch()
        path.chmod(0o600)
    offline.pack(html, places[1])
    assert places[0].read_bytes() == places[1].read_bytes()


@pytest.mark.parametrize(
    ("page", "link"),
    [
        ('<script src="https://example.org/x.js"></script>', "https://example.org/x.js"),
        ('<img src="//example.org/x.png">', "//example.org/x.png"),
        ('<link rel="icon" href="/favicon.svg">', "/favicon.svg"),
        ('<img srcset="a.png 1x, /b.png 2x">', "/b.png"),
        ('<svg><use xlink:href="/icons.svg#a"></use></svg>', "/icons.svg#a"),
        ('<a href="/book/intro.html">intro</a>', "/book/intro.html"),
        ('<a href="file:///home/x/intro.html">intro</a>', "file:///home/x/intro.html"),
        ('<a href="http://127.0.0.1:8000/">here</a>', "http://127.0.0.1:8000/"),
    ],
)
def test_a_link_that_needs_a_server_is_refused(
    html: Path, tmp_path: Path, page: str, link: str
) -> None:
    (html / "search.html").write_text(page)
    with pytest.raises(Problem) as refused:
        offline.pack(html, tmp_path / "book.zip")
    assert f"search.html has links that need a server: {link}." in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["html"]  # nothing half made


@pytest.mark.parametrize(
    "page",
    [
        '<link rel="canonical" href="https://example.org/book/">',
        '<meta property="og:image" content="https://example.org/x.png">',
        '<img src="data:image/gif;base64,R0lGODlhAQABAAAAACw=">',
        '<a href="#top">top</a><a href="other.html">other</a>',
    ],
)
def test_what_is_not_fetched_or_lies_beside_the_page_is_no_fault(page: str) -> None:
    assert offline.absolute_links("page.html", page) == []


def test_a_missing_page_is_named(html: Path, tmp_path: Path) -> None:
    (html / "search.html").unlink()
    with pytest.raises(Problem, match="without these pages: search"):
        offline.pack(html, tmp_path / "book.zip")


def test_a_zip_that_grows_too_large_is_refused(
    html: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offline, "MOST_BYTES", 100)
    with pytest.raises(Problem, match="stay under 100"):
        offline.pack(html, tmp_path / "book.zip")
    assert not (tmp_path / "book.zip").exists()
