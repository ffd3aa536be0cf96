"""The drawing of the block as a map: its parts lead to their chapters."""

import html
import re
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

from transformer_block.notebook import figures

# part of the drawing → where it leads, and what is said to those who cannot see it
PLACES = {
    "embedding": ("chapters/00-the-task", "Embedding and positions: chapter 00"),
    "stack": ("chapters/06-pre-norm-block", "The block: chapter 06"),
    "residual_mha": ("chapters/03-residual", "First residual: chapter 03"),
    "norm_mha": ("chapters/04-layernorm", "First norm: chapter 04"),
    "heads": ("chapters/01-heads", "Heads: chapter 01"),
    "concat": ("chapters/01-heads", "Concat: chapter 01"),
    "W_O": ("chapters/02-output-projection", "Output projection: chapter 02"),
    "residual_ffn": ("chapters/03-residual", "Second residual: chapter 03"),
    "norm_ffn": ("chapters/04-layernorm", "Second norm: chapter 04"),
    "ffn": ("chapters/05-ffn", "Feed-forward network: chapter 05"),
    "norm_final": ("chapters/04-layernorm", "Final norm: chapter 04"),
    "head": ("chapters/00-the-task", "LM head: chapter 00"),
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
            page, said = PLACES.get(found[1], ("", ""))
            if page not in app.env.found_docs:
                return found[0]
            uri = app.builder.get_relative_uri(docname, page)
            return f'<a href="{html.escape(uri)}" aria-label="{said}">{found[0]}</a>'

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
