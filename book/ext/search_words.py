r"""What the search finds, and where: words, Chinese, signs, and the heading they stand under.

Sphinx takes a run of Chinese, which has no spaces, for one word, and a formula's \gamma for a word
of its own. Here the index holds the pieces of a run, and the reader's words are cut the same way.
A file beside the index says under which headings of a page each word stands, for
search_headings.js.
"""

import json
import re
from collections import Counter
from collections.abc import Callable
from functools import wraps
from html import unescape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.search import IndexBuilder, SearchLanguage
from sphinx.search.en import SearchEnglish

HAN = r"\u3400-\u4dbf\u4e00-\u9fff"
SIGNS = r"±×÷·‖✓\u2190-\u22ff"  # the last: arrows, and the operators of mathematics
SMALL = re.compile("[⁰-ₜ²³¹]+")  # superscripts and subscripts
COMMANDS = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "Delta": "Δ", "varepsilon": "ε",
    "epsilon": "ε", "eta": "η", "theta": "θ", "lambda": "λ", "mu": "μ", "pi": "π", "rho": "ρ",
    "sigma": "σ", "Sigma": "Σ", "tau": "τ", "phi": "φ", "varphi": "φ", "Phi": "Φ", "omega": "ω",
    "sqrt": "√", "times": "×", "odot": "⊙", "sum": "∑", "prod": "∏", "partial": "∂", "nabla": "∇",
    "infty": "∞", "to": "→", "approx": "≈", "le": "≤", "ge": "≥", "ne": "≠", "in": "∈",
}  # fmt: skip


class Words(SearchEnglish):
    """English, with the Chinese and the signs that stand in it."""

    # the reader's words, in the browser: the same pieces (of a longer run its pairs, all wanted)
    js_splitter_code = rf"""
function splitQuery(query) {{
  const pieces = query.match(/[{HAN}]+|[{SIGNS}]|(?:(?![{HAN}])[\p{{L}}\p{{N}}_])+/gu) ?? [];
  return pieces.flatMap(piece => /[{HAN}]{{3,}}/u.test(piece)
    ? [...piece].slice(1).map((_, i) => piece.slice(i, i + 2)) : [piece]);
}}
"""

    def split(self, input: str) -> list[str]:  # noqa: A002 (its own name)
        r"""Cut a text into what the index holds of it.

        >>> Words({}).split(r"今天下雨: \gamma, σ² of W_\text{LM} → H")
        ['今', '今天', '天', '天下', '下', '下雨', '雨', 'γ', 'gamma', 'σ²', 'σ', 'of', 'W_LM', '→', 'H']
        """  # noqa: E501 (one result)
        text = re.sub(r"_\{?\\(?:text|mathrm)\{(\w+)\}\}?", r"_\1", input)
        text = re.sub(r"\\([a-zA-Z]+)", lambda m: f" {COMMANDS.get(m[1], '')} {m[1]} ", text)
        words: list[str] = []
        for piece in re.findall(rf"[{HAN}]+|[{SIGNS}]|[^\W{HAN}]+", text):
            if re.match(f"[{HAN}]", piece):
                for at, sign in enumerate(piece):
                    words += [sign, piece[at : at + 2]] if at + 1 < len(piece) else [sign]
            else:
                words += dict.fromkeys([piece, *filter(None, SMALL.split(piece))])
        return words

    def word_filter(self, word: str) -> bool:
        """Leave out bare numbers: the search asks for none."""
        return bool(super().word_filter(word)) and not word.isdecimal()


def visible_words(html: str) -> str:
    """Return the text of a piece of HTML with its parts apart; a drawing also says what it shows.

    >>> visible_words('<svg aria-label="A bar"><text>the</text><text>park</text></svg><b>x</b> &lt; y')
    'A bar the park x < y'
    """  # noqa: E501 (one piece of HTML)
    html = re.sub(r"<(style|script)\b.*?</\1>", " ", html, flags=re.DOTALL | re.IGNORECASE)
    html = re.sub(r'<[^<]*? aria-label="([^"]*)"[^<]*?>', r" \1 ", html)
    return " ".join(unescape(re.sub(r"<[^<]+?>", " ", html)).split())


BEST = 3  # headings kept for a word
HEADINGS = "search-headings.js"


def sections(page: nodes.document, lang: SearchLanguage) -> dict[str, Any]:
    """Return a page's headings, and of each word how often it stands there and under which.

    `at` lists the headings as [id, title]; `of` gives for a word's stem its count and the numbers
    of the best headings: those that hold the word, then those under which it stands most often.
    """
    at: list[list[str]] = []
    votes: dict[str, Counter[int]] = {}
    count: Counter[str] = Counter()
    for section in page.findall(nodes.section):
        if not isinstance(section.parent, nodes.section):
            continue  # the page itself
        title = section.next_node(nodes.title)
        if title is None:
            continue
        texts = [text for text in section.findall(nodes.Text) if _section_of(text) is section]
        for text in texts:
            weight = 100 if text.parent is title or title in _above(text) else 1
            for word in lang.split(text.astext()):
                stem = lang.stem(word.lower())
                votes.setdefault(stem, Counter())[len(at)] += weight
                count[stem] += 1
        at.append([section["ids"][0], title.astext()])
    of = {
        stem: [count[stem], *(number for number, _ in votes[stem].most_common(BEST))]
        for stem in sorted(votes)
        if lang.word_filter(stem)
    }
    return {"at": at, "of": of}


def _above(node: nodes.Node) -> list[nodes.Node]:
    """Return the nodes that hold a node, the nearest first."""
    above = []
    while (node := node.parent) is not None:
        above.append(node)
    return above


def _section_of(text: nodes.Text) -> nodes.Node:
    """Return the nearest section that holds a text."""
    return next(node for node in _above(text) if isinstance(node, nodes.section))


def with_words_apart(feed: Callable[..., None]) -> Callable[..., None]:
    """Give the index each page with its raw HTML as words; Sphinx only cuts the tags out."""

    @wraps(feed)
    def fed(
        index: IndexBuilder, docname: str, filename: str, title: str, page: nodes.document
    ) -> None:
        copy = page.deepcopy()
        for raw in list(copy.findall(nodes.raw)):
            if "html" in raw.get("format", "").split():
                raw.parent.replace(raw, nodes.Text(visible_words(raw.astext())))
        feed(index, docname, filename, title, copy)
        vars(index).setdefault("sections", {})[docname] = sections(copy, index.lang)

    return fed


def ask_for_headings(app: Sphinx, page: str, *_: object) -> None:
    """Let the search page, and no other, load the headings."""
    if page == "search":
        app.add_js_file(HEADINGS)


def write_headings(app: Sphinx, failed: Exception | None) -> None:
    """Write the headings of all pages beside the index."""
    kept = vars(getattr(app.builder, "indexer", None) or object).get("sections", {})
    if failed is None and kept:
        text = json.dumps({page: kept[page] for page in sorted(kept)}, ensure_ascii=False)
        place = Path(app.outdir) / "_static" / HEADINGS
        place.write_text(f"window.SECTIONS = {text};\n", encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Take the place of Sphinx's English."""
    app.add_search_language(Words)
    if not hasattr(IndexBuilder.feed, "__wrapped__"):
        IndexBuilder.feed = with_words_apart(IndexBuilder.feed)  # type: ignore[method-assign]
    app.connect("html-page-context", ask_for_headings)
    app.connect("build-finished", write_headings)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
