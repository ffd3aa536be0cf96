"""What search engines and previews are told: a description, a picture, an address for each page.

A page's description is its first sentences; its picture is drawn when the book is built. Where
the site's address is known (html_baseurl), each page names its own, and sitemap.xml lists all.
"""

import re
from html import escape
from pathlib import Path
from textwrap import shorten, wrap
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

LONGEST = 200  # characters; previews cut a description there
CARD = 1200, 630  # pixels, the size that previews show whole
FOLDER = "_static/cards"
PAPER, INK, BLUE, SOFT = "#ffffff", "#1b2126", "#0072b2", "#dbe9f3"


def words(node: nodes.Node) -> str:
    r"""Return what a paragraph says, with its formulas as plain letters.

    >>> words(nodes.paragraph("", "", nodes.math("", r"W_\text{LM} \to H"), nodes.Text(" is")))
    'W_LM → H is'
    """
    if isinstance(node, nodes.math):
        plain = re.sub(r"\\(?:text|mathrm|mathbf)\{(.*?)\}", r"\1", node.astext())
        return re.sub(r"\\(\w+) ?", r"\1", plain.replace(r"\to", "→")).replace("  ", " ")
    if isinstance(node, nodes.Text):
        return node.astext()
    return "".join(map(words, node.children))


def description(doctree: nodes.document) -> str:
    """Return the page's first sentences, cut at a word."""
    said = (
        words(paragraph)
        for paragraph in doctree.findall(nodes.paragraph)
        if not isinstance(paragraph.parent, nodes.raw)
    )
    return shorten(next((text for text in said if text), ""), LONGEST, placeholder=" …")


def tags(title: str, said: str, book: str, address: str, card: str) -> str:
    """Return the page's tags; `address` and `card` are whole addresses, or "" if not known.

    >>> print(tags('A "b"', "It is.", "Book", "", ""))
    <meta name="description" content="It is.">
    <meta property="og:type" content="article">
    <meta property="og:site_name" content="Book">
    <meta property="og:title" content="A &quot;b&quot;">
    <meta property="og:description" content="It is.">
    """
    facts = {"og:type": "article", "og:site_name": book, "og:title": title, "og:description": said}
    if address:
        facts |= {"og:url": address, "og:image": card, "og:image:alt": f"{title}, in {book}"}
        facts |= {"og:image:width": str(CARD[0]), "og:image:height": str(CARD[1])}
    lines = [f'<meta name="description" content="{escape(said)}">']
    lines += [f'<meta property="{key}" content="{escape(text)}">' for key, text in facts.items()]
    if address:
        lines.append('<meta name="twitter:card" content="summary_large_image">')
    return "\n".join(lines)


def draw(path: Path, title: str, said: str, book: str) -> None:
    """Draw a page's card: its title and first sentence beside the block's two additions."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    figure = Figure(figsize=(CARD[0] / 100, CARD[1] / 100), dpi=100, facecolor=PAPER)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, CARD[0]), ylim=(CARD[1], 0))
    axes.axis("off")
    axes.plot([1090, 1090], [60, 570], color=BLUE, linewidth=6)  # the stream
    for at, name in ((150, "FFN"), (370, "MHA")):
        axes.add_patch(Rectangle((900, at), 130, 110, facecolor=SOFT, edgecolor=BLUE, linewidth=3))
        axes.text(965, at + 55, name, fontsize=19, color=INK, ha="center", va="center")
        axes.plot([1090, 965, 965], [at + 150, at + 150, at + 110], color=BLUE, linewidth=3)
        axes.plot([965, 965, 1090], [at, at - 40, at - 40], color=BLUE, linewidth=3)
        axes.plot(1090, at - 40, "o", markersize=26, markerfacecolor=PAPER, color=BLUE)
        axes.text(1090, at - 40, "+", fontsize=20, color=INK, ha="center", va="center")
    plain: dict[str, Any] = {
        "parse_math": False,
        "color": INK,
        "va": "top",
        "family": "DejaVu Sans",
    }
    axes.text(70, 70, book, fontsize=17, **(plain | {"color": BLUE}))
    heading = "\n".join(wrap(title, 24))
    axes.text(70, 150, heading, fontsize=38, weight="bold", linespacing=1.2, **plain)
    below = 190 + 66 * (heading.count("\n") + 1)
    lines = wrap(said, 48)[: max(1, (590 - below) // 38)]
    axes.text(70, below, "\n".join(lines), fontsize=18, linespacing=1.45, **plain)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})  # the same bytes whatever the version


def describe(
    app: Sphinx, page: str, _template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Put the tags into the page's head, and draw its picture."""
    if doctree is None:  # the search, the index: nobody shares them
        return
    book, site = app.config.html_title, app.config.html_baseurl
    title, said = re.sub("<.*?>", "", context["title"]), description(doctree)
    card = f"{FOLDER}/{page.replace('/', '-')}.png"
    if site:
        draw(Path(app.outdir) / card, title, said, book)
    address = f"{site}{page}.html" if site else ""
    made = tags(title, said, book, address, f"{site}{card}")
    context["metatags"] = context.get("metatags", "") + "\n" + made


def list_pages(app: Sphinx, failed: Exception | None) -> None:
    """Write sitemap.xml, which is of use with whole addresses only."""
    if failed or not app.config.html_baseurl or app.builder.format != "html":
        return
    pages = "".join(
        f"<url><loc>{escape(app.config.html_baseurl)}{page}.html</loc></url>\n"
        for page in sorted(app.env.found_docs)
    )
    (Path(app.outdir) / "sitemap.xml").write_text(
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n{pages}</urlset>\n',
        encoding="utf-8",
    )


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to Sphinx."""
    app.connect("html-page-context", describe)
    app.connect("build-finished", list_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
