"""matplotlib's drawings, made to fit the page."""

import io
import re
from typing import Any

from transformer_block.notebook.figures.picture import SERIES, Picture

# the first six that matplotlib takes by itself
_THEIR_COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b")


def from_matplotlib(fig: Any, alt: str) -> Picture:
    """Turn a matplotlib figure into a Picture in the page's own colours, and close it.

    Text stays text, black becomes the page's ink and the background transparent. The same figure
    gives the same bytes. Chinese is for `bars`, `heat_map` and `lines`: matplotlib brings no
    glyphs for it.
    """
    import matplotlib as mpl
    from matplotlib import pyplot

    # a fixed salt: otherwise the clip paths' names are new each time
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "transformer-block"}):
        for axes in fig.axes:
            if legend := axes.get_legend():
                legend.set_frame_on(False)  # its background is white even where all else is clear
        file = io.StringIO()
        quiet = {"Date": None, "Creator": None, "Format": None, "Type": None}
        fig.savefig(file, format="svg", transparent=True, bbox_inches="tight", metadata=quiet)
    pyplot.close(fig)
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :].rstrip()
    svg = re.sub(r"<!--.*?-->\s*|<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"(?<![\w#])(#000000|black)(?!\w)", "currentColor", svg)
    svg = re.sub(r"<[^>]+>", lambda tag: re.sub(r"\d+\.\d{2,}", _rounded, tag[0]), svg)
    for theirs, ours in zip(_THEIR_COLOURS, SERIES, strict=True):
        svg = svg.replace(theirs, ours)
    # paths and texts that name no colour are black in SVG; the root gives them the ink
    style = (
        'style="max-width:100%;height:auto" fill="currentColor" font-family="system-ui,sans-serif"'
    )
    svg = re.sub(r'<svg ([^>]*?)height="[^"]*"', rf"<svg {style} \1", svg, count=1)
    svg = re.sub(r"\s*\n\s*", "\n", svg)
    return Picture(svg, alt)


def _rounded(number: re.Match[str]) -> str:
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")
