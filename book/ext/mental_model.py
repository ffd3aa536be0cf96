"""The drawing of the block as a map: its parts lead to their chapters."""

import html
import re
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

from transformer_block import figures

# part of the drawing → where it leads
PLACES = {
    "embedding": "chapters/00-the-task",
    "stack": "chapters/07-stack",
    "residual_mha": "chapters/03-residual",
    "norm_mha": "chapters/04-layernorm",
    "heads": "chapters/01-heads",
    "concat": "chapters/01-heads",
    "W_O": "chapters/02-output-projection",
    "residual_ffn": "chapters/03-residual",
    "norm_ffn": "chapters/04-layernorm",
    "ffn": "chapters/05-ffn",
    "norm_final": "chapters/07-stack",
    "head": "chapters/08-lm-head",
}


class BlockMap(nodes.General, nodes.Element):  # type: ignore[misc]  # docutils is untyped
    """Stands in the page until it is known which pages there are."""


class BlockMapDirective(Directive):  # type: ignore[misc]  # docutils is untyped
    """`{block-map}` draws the block with its parts as links."""

    def run(self) -> list[nodes.Node]:
        """Leave a mark; the links are made when every page is known."""
        return [BlockMap()]


def draw(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Replace each mark by the drawing, a part linked where its chapter exists."""
    for mark in list(doctree.findall(BlockMap)):
        svg = figures.block().svg

        def linked(found: re.Match[str]) -> str:
            page = PLACES.get(found[1], "")
            if page not in app.env.found_docs:
                return found[0]
            uri = app.builder.get_relative_uri(docname, page)
            return f'<a href="{html.escape(uri)}">{found[0]}</a>'  # named by its own text

        svg = re.sub(r'<g data-part="(\w+)">.*?</g>', linked, svg, flags=re.DOTALL)
        label = "The Pre-Norm block inside a language model; its parts lead to their chapters."
        svg = f'<svg role="group" aria-label="{label}"{svg[4:]}'
        svg = re.sub(r' width="\d+"', ' width="560"', svg, count=1)
        drawn = nodes.raw("", f'<div class="tb-map">{svg}</div>', format="html")
        mark.replace_self(drawn)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_node(BlockMap)
    app.add_directive("block-map", BlockMapDirective)
    app.connect("doctree-resolved", draw)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
