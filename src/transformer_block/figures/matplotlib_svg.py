"""matplotlib's drawings, made to fit the page."""

import io
import re
import warnings
from collections.abc import Mapping
from html import escape
from typing import Any
from xml.etree import ElementTree

from transformer_block.figures.picture import SERIES, Number, Picture, drawing

PALETTE = [colour[-8:-1] for colour in SERIES]  # as matplotlib takes them: "#0072b2"
# the first six that matplotlib takes by itself
_THEIRS = ["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b"]
_ON_THE_PAGE = {
    **dict(zip(PALETTE, SERIES, strict=True)),
    **dict(zip(_THEIRS, SERIES, strict=True)),
    "#000000": "currentColor",
}
_NAMED = {"x", "y", "d", "points", "transform", "width", "height", "r", "cx", "cy"}
_NEEDLESS = re.compile(
    r"font-family:.*|font-size:13px|text-anchor:start|stroke-dashoffset:0|stroke-width:1"
)


def from_matplotlib(fig: Any, alt: str) -> Picture:
    """Turn a matplotlib figure into a Picture in the page's own colours, and close it.

    Text stays text, in the page's font; black becomes the page's ink and the background
    transparent. The same figure gives the same bytes.
    """
    from matplotlib import pyplot

    for axes in fig.axes:
        if legend := axes.get_legend():
            legend.set_frame_on(False)  # its background is white even where all else is clear
    pyplot.close(fig)
    return Picture(page_svg(fig, digits=2, zoom=4 / 3, bbox_inches="tight"), alt)


def page_svg(fig: Any, *, digits: int, zoom: Number, **how: Any) -> str:
    """Return a figure as an `<svg>` like the other drawings', its numbers rounded to `digits`.

    `how` goes to matplotlib's `savefig`.
    """
    import matplotlib as mpl

    file = io.StringIO()
    undated = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    # a fixed salt: otherwise names are new each time
    style: Any = {"svg.fonttype": "none", "svg.hashsalt": "transformer-block"}
    with mpl.rc_context(style), warnings.catch_warnings():
        # matplotlib measures Chinese with the box of a missing glyph; the browser has the glyphs
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        fig.savefig(file, format="svg", transparent=True, metadata=undated, **how)
    svg = file.getvalue()
    root = ElementTree.fromstring(svg)  # noqa: S314 - matplotlib wrote it a line above
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    named = set(re.findall(r"#(\w+)", svg))
    parts = "".join(_written(node, named, digits) for node in root)
    return drawing(width, height, [f'<g stroke-linejoin="round">{parts}</g>'], zoom)


def _written(node: ElementTree.Element, named: set[str], digits: int) -> str:
    """Write an element again in few bytes, without what would reach beyond its picture."""
    tag = node.tag.rpartition("}")[2]
    if tag in ("style", "metadata"):  # a style sheet would hold for the whole page
        return ""
    dots = [child for child in node if child.tag.endswith("}use")]
    if len({dot.get("style") for dot in dots}) == 1:  # what they share is said once
        for dot in dots:
            node.attrib["style"] = dot.attrib.pop("style")
    attributes = _attributes(node.attrib, named, digits)
    inside = escape((node.text or "").strip(), quote=False) if tag in ("text", "tspan") else ""
    inside += "".join(_written(child, named, digits) for child in node)
    if tag == "g" and not attributes:
        return inside
    unseen = attributes.get("style") == "fill:none" if tag == "path" else not inside
    if unseen and tag in ("path", "g", "defs"):
        return ""
    more = "".join(f' {name}="{escape(value)}"' for name, value in attributes.items())
    return f"<{tag}{more}>{inside}</{tag}>" if inside else f"<{tag}{more}/>"


def _attributes(given: Mapping[str, str], named: set[str], digits: int) -> dict[str, str]:
    kept = {}
    for full, value in given.items():
        name = full.rpartition("}")[2]  # xlink:href is href today
        if name == "id" and value not in named:
            continue
        if name == "transform" and value.startswith("rotate(-0 "):
            continue
        if name == "style":
            value = _style(value)
        elif name in _NAMED:
            value = _short(value, digits)
        if value:
            kept[name] = value
    return kept


def _style(text: str) -> str:
    kept = []
    for rule in re.sub(r"\s*([:;,])\s*", r"\1", text).split(";"):
        if not _NEEDLESS.fullmatch(rule):
            name, _, value = rule.partition(":")
            kept.append(f"{name}:{_ON_THE_PAGE.get(value, value)}")
    return ";".join(kept)


def _short(numbers: str, digits: int) -> str:
    def rounded(number: re.Match[str]) -> str:
        short = f"{float(number[0]):.{digits}f}".rstrip("0").rstrip(".")
        return "0" if short == "-0" else short

    numbers = re.sub(r"-?\d+\.\d+(e-?\d+)?", rounded, numbers)
    return re.sub(r"\s*([A-Za-z])\s*", r"\1", " ".join(numbers.split()))
