"""A drawing with the text that stands for it, and the few tools that draw with."""

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

Number = int | float  # type checkers at run time do not take an int for a float

# Colours that colour-blind readers can tell apart; the page may set its own for dark mode.
SERIES = [
    f"var(--tb-{number},{colour})"
    for number, colour in enumerate(
        ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"], 1
    )
]


class Picture:
    """An SVG drawing. `alt` says what it shows; it is the picture's plain text, too."""

    def __init__(self, svg: str, alt: str) -> None:
        if not svg.startswith("<svg"):
            raise ValueError(f"a Picture is made of one <svg>; this begins with {svg[:20]!r}")
        if not alt.strip():
            raise ValueError("a Picture needs an alt text that says what it shows")
        self.svg, self.alt = svg, alt

    def _repr_html_(self) -> str:
        return f'<svg role="img" aria-label="{escape(self.alt)}"{self.svg[4:]}'

    def __repr__(self) -> str:
        return self.alt


class Gallery:
    """Pictures in a row that breaks where the page is narrow."""

    def __init__(self, pictures: Sequence[Picture], captions: Sequence[str]) -> None:
        self.pictures, self.captions = pictures, captions

    def _repr_html_(self) -> str:
        cells = [
            '<div style="flex:0 1 auto;min-width:0;max-width:100%">'
            f"{f'<div>{escape(caption)}</div>' if caption else ''}{picture._repr_html_()}</div>"
            for picture, caption in zip(self.pictures, self.captions, strict=True)
        ]
        return (
            '<div style="display:flex;flex-wrap:wrap;gap:.8em 1.2em;align-items:flex-end">'
            f"{''.join(cells)}</div>"
        )

    def __repr__(self) -> str:
        pairs = zip(self.captions, self.pictures, strict=True)
        return "\n".join(f"{c}: {p.alt}" if c else p.alt for c, p in pairs)


def side_by_side(*pictures: Picture, captions: Sequence[str] | None = None) -> Gallery:
    """Put pictures beside each other, with a caption above each.

    Raises:
        ValueError: not one caption a picture.
    """
    captions = [""] * len(pictures) if captions is None else captions
    if not pictures or len(captions) != len(pictures):
        raise ValueError(
            f"side_by_side needs one caption a picture; {len(pictures)} pictures, "
            f"{len(captions)} captions"
        )
    return Gallery(pictures, captions)


def drawing(width: Number, height: Number, parts: Iterable[str], zoom: Number = 1.2) -> str:
    """Return the `<svg>` of these parts: shown somewhat larger than drawn, narrower on a phone."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {dot(width)} {dot(height)}" '
        f'width="{round(width * zoom)}" style="max-width:100%;height:auto" '
        f'font-family="system-ui,sans-serif" font-size="13" fill="currentColor">'
        f"{''.join(parts)}</svg>"
    )


def text(x: Number, y: Number, words: object, anchor: str = "start", more: str = "") -> str:
    """Return one line of text, its baseline at y."""
    side = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{dot(x)}" y="{dot(y)}"{side}{more}>{escape(str(words))}</text>'


def dot(number: Number) -> str:
    """Return a coordinate with one digit after the point at most.

    >>> dot(3.14159), dot(2.0), dot(-0.01)
    ('3.1', '2', '0')
    """
    short = f"{number:.1f}".rstrip("0").rstrip(".")
    return "0" if short == "-0" else short


def text_width(words: str, size: Number = 13) -> float:
    """Return about how wide a text will be; a Chinese character counts as one size.

    >>> text_width("park") < text_width("公园公园")
    True
    """
    return size * sum(
        1.0 if ord(c) > 0x2E80 else 0.95 if c in "mwMW%" else 0.38 if c in "iljtf.,:;'|! " else 0.64
        for c in words
    )


def numbers(values: Any) -> list[Any]:
    """Return (nested) lists of Python floats from lists, tensors or arrays."""
    values = values.tolist() if hasattr(values, "tolist") else values
    return [numbers(v) if hasattr(v, "__len__") else float(v) for v in values]


def finite(values: Iterable[float], what: str) -> None:
    """Raise ValueError if a number is not finite, naming the first."""
    for place, value in enumerate(values):
        if not math.isfinite(value):
            raise ValueError(f"{what} cannot draw {value}; it stands at place {place}")
