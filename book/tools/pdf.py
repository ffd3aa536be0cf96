"""Print the whole book into one PDF.

    python -m book.tools.pdf

builds the book if anything has changed, joins its pages into one, lets Chromium print that with
the pages' own print style, and writes _build/transformer-block.pdf. Links inside the book lead to
their places in the PDF. Then the text of the PDF is compared with the sources: a paragraph, a line
of code or of output that is not there, or leaves the paper, is an error. The same book, printed by
the same Chromium, makes the same bytes.
"""

import io
import json
import posixpath
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml
from bs4 import BeautifulSoup, Tag
from playwright.sync_api import Browser, sync_playwright
from pypdf import PdfReader

from .browser import HOW_TO_GET_ONE, launch
from .common import BUILD, Problem, new_folder, run_command
from .publish import CONFIG, TOC, publish, source_of

PDF = BUILD / "transformer-block.pdf"
MARGIN, SCALE = 18, 0.85  # mm; the pages' 16 px become 10 pt
WIDTH = int((210 - 2 * MARGIN) / 25.4 * 96 / SCALE)  # px of the pages' own, on A4
FOOT = (
    '<div style="width: 100%; text-align: center; font: 9px sans-serif; color: #444">'
    '<span class="pageNumber"></span></div>'
)
LEFT_OUT = "script, noscript, button, .headerlink, .tb-run, .toggle-details"
STYLE = """
html, body { background: #fff; }
.bd-article h1 { display: block !important; }
.tb-part { break-before: page; }
.tb-title { padding-top: 75mm; text-align: center; }
.tb-title h1 { font-size: 2.6rem; border: 0; }
.tb-contents { break-before: page; }
.tb-contents ol { list-style: none; padding-left: 1.2rem; margin: 0; }
.tb-contents > ol { padding-left: 0; }
.tb-contents .caption { font-weight: 650; margin: .9rem 0 .2rem; break-after: avoid; }
.tb-contents a { display: flex; gap: .5rem; color: inherit; text-decoration: none; break-inside: avoid; }
.tb-contents a span:last-child { margin-left: auto; width: 3rem; text-align: right; }
.tb-contents ol ol { font-size: .85rem; }
"""  # noqa: E501 (a rule a line)


@dataclass(frozen=True)
class Part:
    """A part of the table of contents: its caption and its pages."""

    caption: str
    pages: tuple[str, ...]


def parts() -> list[Part]:
    """Return the parts of the book; the first holds the page it opens with."""
    toc = yaml.safe_load(TOC.read_text(encoding="utf-8"))
    rest = [
        Part(part["caption"], tuple(entry["file"] for entry in part["chapters"]))
        for part in toc["parts"]
    ]
    return [Part("", (toc["root"],)), *rest]


# ------------------------------------------------------------------------------ one page of all


def place(page: str, fragment: str = "") -> str:
    """Name a place in the joined book: ids of two pages may be the same.

    >>> place("chapters/01-heads", "play")
    'chapters-01-heads--play'
    """
    return f"{page.replace('/', '-')}--{fragment}"


def article(html: Path, page: str, printed: frozenset[str]) -> Tag:
    """Return a built page's text, its folds open and its links and ids those of the joined book.

    Args:
        html: the folder of the built book.
        page: the page's name.
        printed: the names of all pages that are printed.
    """
    soup = BeautifulSoup((html / f"{page}.html").read_text(encoding="utf-8"), "html.parser")
    text = soup.find("article")
    if not isinstance(text, Tag):
        raise Problem(f"{page}.html has no article to print.")
    for unwanted in text.select(LEFT_OUT):
        unwanted.decompose()
    for tag in [text, *text.find_all(True)]:
        _move(tag, html, page, printed)
    text["id"] = place(page)
    text["class"] = "bd-article tb-part"
    return text


def _move(tag: Tag, html: Path, page: str, printed: frozenset[str]) -> None:
    """Rewrite what names a place, in one element."""
    if tag.name == "details":
        tag["open"] = ""
    for name, value in list(tag.attrs.items()):
        value = str(value) if not isinstance(value, list) else " ".join(value)
        if name in {"id", "for"}:
            tag[name] = place(page, value)
        elif name in {"aria-labelledby", "aria-describedby"}:
            tag[name] = " ".join(place(page, one) for one in value.split())
        elif name in {"href", "xlink:href"}:
            link = _link(value, page, printed)
            if link is None:
                del tag[name]
            else:
                tag[name] = link
        elif name == "src" and not value.startswith("data:"):
            tag[name] = (html / posixpath.dirname(page) / unquote(value)).resolve().as_uri()
        elif "url(#" in value:
            tag[name] = value.replace("url(#", f"url(#{place(page)}")


def _link(link: str, page: str, printed: frozenset[str]) -> str | None:
    """Return where a page's link leads in the joined book; None: nowhere."""
    parts = urlsplit(link)
    if parts.scheme:
        return link
    target = page
    if parts.path:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), unquote(parts.path)))
        target = target.removesuffix(".html")
    if target not in printed:
        return None
    return f"#{place(target, unquote(parts.fragment))}"


def contents(book: Sequence[Part], texts: Mapping[str, Tag], numbers: Mapping[str, int]) -> str:
    """Return the list of parts, pages and sections; `numbers`: the paper's page of each place."""

    def entry(at: str, heading: Tag) -> str:
        title = escape(" ".join(heading.get_text().split()))
        number = numbers.get(at, "")
        return f'<a href="#{at}"><span>{title}</span><span>{number}</span></a>'

    made = []
    for part in book:
        if part.caption:
            made.append(f'<div class="caption">{escape(part.caption)}</div>')
        for page in part.pages:
            sections = "".join(
                f"<li>{entry(str(section['id']), heading)}</li>"
                for section in texts[page].select("section[id]:has(> h2)")
                if (heading := section.find("h2"))
            )
            title = texts[page].find("h1")
            if not isinstance(title, Tag):
                raise Problem(f"{page} has no title.")
            made.append(f"<ol><li>{entry(place(page), title)}<ol>{sections}</ol></li></ol>")
    return f'<nav class="tb-contents"><h1>Contents</h1>{"".join(made)}</nav>'


def styles(html: Path, page: str) -> Iterator[str]:
    """Yield the addresses of a page's style sheets."""
    soup = BeautifulSoup((html / f"{page}.html").read_text(encoding="utf-8"), "html.parser")
    for sheet in soup.select('link[rel="stylesheet"]'):
        path = urlsplit(str(sheet["href"])).path
        yield (html / posixpath.dirname(page) / path).resolve().as_uri()


def joined(
    html: Path, book: Sequence[Part], texts: Mapping[str, Tag], numbers: Mapping[str, int]
) -> str:
    """Return the whole book as one page of HTML."""
    title = escape(yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["title"])
    sheets = "".join(
        f'<link rel="stylesheet" href="{sheet}">' for sheet in styles(html, book[0].pages[0])
    )
    pages = "\n".join(str(texts[page]) for part in book for page in part.pages)
    return (
        f'<!doctype html><html lang="en" data-theme="light"><head><meta charset="utf-8">'
        f"<title>{title}</title>{sheets}<style>{STYLE}</style></head><body>"
        '<main class="bd-main"><div class="bd-content"><div class="bd-article-container">'
        f'<article class="bd-article tb-title"><h1>{title}</h1></article>'
        f'<article class="bd-article">{contents(book, texts, numbers)}</article>{pages}'
        "</div></div></main></body></html>"
    )


# ---------------------------------------------------------------------------------- printing

CUT = """() => {
  const faults = [], width = document.documentElement.clientWidth;
  for (const e of document.querySelectorAll('article :is(p, pre, li, td, th, code, table, svg, img, .katex-html)')) {
    if (e.parentElement.closest('svg')) continue;
    const box = e.getBoundingClientRect(), inside = e.localName === 'pre' && e.scrollWidth > e.clientWidth + 1;
    if (box.width > 1 && (box.right > width + 1 || inside)) faults.push(`<${e.localName}> ${e.textContent.trim().slice(0, 60)}`);
  }
  return faults.slice(0, 10);
}"""  # noqa: E501 (one condition a line)


def printed_pdf(browser: Browser, page: Path) -> bytes:
    """Print a page; refuse one from which something sticks out of the paper.

    Raises:
        Problem: something loses its right end.
    """
    with browser.new_context(
        viewport={"width": WIDTH, "height": 1000}, color_scheme="light"
    ) as context:
        tab = context.new_page()
        tab.set_default_timeout(300_000)
        tab.emulate_media(media="print")
        tab.goto(page.as_uri(), wait_until="load")
        tab.evaluate("document.fonts.ready.then(() => 1)")
        if cut := tab.evaluate(CUT):
            raise Problem("These lose their right end on paper:\n  " + "\n  ".join(cut))
        mm = f"{MARGIN}mm"
        return tab.pdf(
            format="A4",
            margin={"top": mm, "bottom": mm, "left": mm, "right": mm},
            scale=SCALE,
            print_background=True,
            display_header_footer=True,
            header_template="<span></span>",
            footer_template=FOOT,
            outline=True,
            tagged=True,
        )


def page_numbers(reader: PdfReader) -> dict[str, int]:
    """Return the number, from 1, of the paper page on which each named place is."""
    numbers = {}
    for name, destination in reader.named_destinations.items():
        number = reader.get_destination_page_number(destination)
        if number is not None:
            numbers[unquote(name.removeprefix("/"))] = number + 1
    return numbers


def without_times(pdf: bytes) -> bytes:
    """Replace the moments at which a PDF was made, by ones as long: its offsets stay right.

    >>> without_times(b"/ModDate (D:20261203141336+00'00')")
    b"/ModDate (D:19800101000000+00'00')"
    """
    return re.sub(rb"(Date \(D:)\d{14}", rb"\g<1>19800101000000", pdf)


# ------------------------------------------------------------------- the text, and the sources


# Signs that share a glyph with a radical, as which the PDF may name them; NFKC keeps these apart.
RADICALS = str.maketrans(
    "⻅⻆⻉⻋⻓⻔⻘⻚⻛⻜⻝⻢⻣⻤⻥⻦⻨⻩⻬⻮⻰⻳",
    "见角贝车长门青页风飞食马骨鬼鱼鸟麦黄齐齿龙龟",
)


def letters(text: str) -> str:
    """Reduce prose to its letters and digits: breaks, quotes and dashes are the printer's.

    >>> letters("“W_O” – the ﬁrst, 天气")
    'W_Othefirst天气'
    """
    return re.sub(r"[^\w]", "", unicodedata.normalize("NFKC", text).translate(RADICALS))


def signs(text: str) -> str:
    r"""Reduce code to its signs: a long line is wrapped.

    >>> signs("x = [1,\n  2]")
    'x=[1,2]'
    """
    return re.sub(r"\s", "", unicodedata.normalize("NFKC", text).translate(RADICALS))


SETTINGS = re.compile(r"\A---\n.*?^---\n", re.MULTILINE | re.DOTALL)  # a page's own, at its top
FENCE = re.compile(r"^ *```+([^\n]*)\n(.*?)^ *```+ *$", re.MULTILINE | re.DOTALL)
NO_PROSE = re.compile(
    r"<!--.*?-->|\$\$.*?\$\$|\$[^$\n]+\$"  # comments, mathematics
    r"|\{[\w:]+\}`[^`]*`|!\[[^\]]*\]\([^)]*\)|\]\([^)]*\)|<[^>\n]+>"  # roles, pictures, links, tags
    r"|^\([\w-]+\)=$|^%.*$|^:+(?:\{.*|$)|^ *\|[-:| ]+\|$"  # labels, comments, directives, tables
    r"|^ *(?:\d+\.|[-*>:]) |[*`|\[\]\\]|\n\n",
    re.MULTILINE | re.DOTALL,
)


def prose(markdown: str) -> Iterator[str]:
    r"""Yield the runs of words of a Markdown text, and the lines of its code, as they are.

    >>> list(prose("---\nkey: 1\n---\nA *word* of $x$ in [a link](b.md).\n```python\nx = 1\n```"))
    ['x = 1', 'A ', 'word', ' of ', ' in ', 'a link', '.', '\n']
    """
    markdown = SETTINGS.sub("", markdown)
    for fence in FENCE.finditer(markdown):
        if not fence[1].startswith("{"):
            yield from fence[2].splitlines()
    yield from NO_PROSE.split(FENCE.sub("\n\n", markdown))


@dataclass(frozen=True)
class Said:
    """What a page's source says: runs of words, and lines of code and of output."""

    words: list[str]
    lines: list[str]


def said(source: Path) -> Said:
    """Return what the paper has to hold of a page's source."""
    if source.suffix == ".md":
        return Said(list(prose(source.read_text(encoding="utf-8"))), [])
    words: list[str] = []
    lines: list[str] = []
    for cell in json.loads(source.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            words += prose(text)
        elif cell["cell_type"] == "code":
            lines += text.splitlines()
            for output in cell["outputs"]:
                lines += _lines(output)
    return Said(words, lines)


def _lines(output: dict[str, Any]) -> list[str]:
    """Return the lines of an output that is plain text."""
    data = output.get("data", {})
    text = data["text/plain"] if set(data) == {"text/plain"} else output.get("text", "")
    return "".join(text).splitlines()


def is_there(wanted: str, papers: Sequence[str]) -> bool:
    """Tell whether a text is on one of the papers, or runs on from one to the next."""
    if any(wanted in paper for paper in papers):
        return True
    for paper, following in pairwise(papers):
        for cut in range(1, len(wanted)):
            if wanted[:cut] in paper and wanted[cut:] in following:
                return True
    return False


def lost(source: Path, papers: Sequence[str]) -> list[str]:
    """Return what a page's source says and its papers, as text, do not."""
    found = said(source)
    missing = []
    for texts, reduced in ((found.words, letters), (found.lines, signs)):
        shown = [reduced(paper) for paper in papers]
        missing += [text for text in texts if not is_there(reduced(text), shown)]
    return [" ".join(text.split()) for text in missing]


def insist_on_every_word(reader: PdfReader, pages: Mapping[str, Path]) -> None:
    """Refuse a PDF that lacks something of its sources.

    Args:
        reader: the PDF.
        pages: each page's source, in the book's order.

    Raises:
        Problem: with all that is lost.
    """
    numbers = page_numbers(reader)
    starts = [numbers[place(page)] - 1 for page in pages]
    faults = []
    for (page, source), start, end in zip(
        pages.items(), starts, [*starts[1:], len(reader.pages)], strict=True
    ):
        papers = [
            reader.pages[number].extract_text().removesuffix(f"\n{number + 1}")
            for number in range(start, end)
        ]
        faults += [f"{page}: {text}" for text in lost(source, papers)]
    if faults:
        raise Problem("The PDF lacks:\n  " + "\n  ".join(faults))


# ------------------------------------------------------------------------------- the command


def make(html: Path, book: Sequence[Part], pdf: Path) -> int:
    """Print a built book into a PDF; return the number of its paper pages.

    It is printed twice: the contents can name the papers only when all else has its place.

    Raises:
        Problem: there is no Chromium; something leaves the paper or is lost; or the second
            print's pages are not those of the first.
    """
    names = [page for part in book for page in part.pages]
    texts = {page: article(html, page, frozenset(names)) for page in names}
    with new_folder(pdf.parent) as folder, sync_playwright() as playwright:
        browser = launch(playwright)
        if browser is None:
            raise Problem(f"The PDF is printed by Chromium, and none was found.\n{HOW_TO_GET_ONE}")
        page, numbers = folder / "book.html", dict[str, int]()
        for _ in range(2):
            page.write_text(joined(html, book, texts, numbers), encoding="utf-8")
            content = without_times(printed_pdf(browser, page))
            reader = PdfReader(io.BytesIO(content))
            before, numbers = numbers, page_numbers(reader)
        browser.close()
        if before != numbers:
            raise Problem("The contents' page numbers moved the pages they name.")
        insist_on_every_word(reader, {name: source_of(name) for name in names})
        made = folder / pdf.name
        made.write_bytes(content)
        made.replace(pdf)
    return len(reader.pages)


def main() -> None:
    """Build the book if need be, print it, and say where the PDF is."""
    html = publish()
    print("Printing the book (some minutes) ...", flush=True)
    papers = make(html, parts(), PDF)
    print(f"The book on {papers} pages, {PDF.stat().st_size / 1e6:.1f} MB: {PDF}")


if __name__ == "__main__":
    run_command(main)
