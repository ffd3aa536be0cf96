"""The living model's place on its page: scripts, and a still picture until they have come."""

import html
from typing import Any

import torch
from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

from transformer_block import figures, record
from transformer_block.language import join, toy_language

WORDS = ["Mary", "bought", "a", "new", "phone", ",", "its"]
MOUNT = """
<link rel="stylesheet" href="../_static/vendor/play.css">
<div id="living-model" class="tb-play">{still}</div>
<script defer src="../_static/living/language.js"></script>
<script defer src="../_static/vendor/play.js"></script>
"""


class LivingModel(Directive):  # type: ignore[misc]  # docutils is untyped
    """`{living-model}` puts the model where it stands, with its answer to one sentence in it."""

    def run(self) -> list[nodes.Node]:
        """Ask the model as the page will, and write down what it says."""
        return [nodes.raw("", MOUNT.format(still=still()), format="html")]


def still() -> str:
    """Return the answer to one sentence beside the exact chances, and a head that fetches it."""
    from book.tools.living import model_at  # needed by this one page, not by every book

    language, model = toy_language(), model_at(800)
    says = list(language.predict(model, WORDS).items())[:5]
    exact = language.next_token_distribution(WORDS)
    with torch.no_grad(), record(model, "blocks.0.mha.A") as run:
        model(language.encode(WORDS)[None])
    A = run["blocks.0.mha.A"][0]  # of block 1, the head that reads most of the product
    head = int(A[:, -1, 5].argmax())
    rows = "".join(
        f"<tr><th>{html.escape(word)}</th><td>{p:.2f}</td><td>{exact.get(word, 0):.2f}</td></tr>"
        for word, p in says
    )
    picture = figures.reading(A[head], ["‹begin›", *WORDS], lit=7, width=420)
    return (
        f"<p><b>{html.escape(join(WORDS))} …</b></p><table><thead><tr><th>word</th>"
        f"<th>the model</th><th>the exact chance</th></tr></thead><tbody>{rows}</tbody></table>"
        f"<p>Head {head + 1} of block 1 reads:</p>{picture._repr_html_()}"
        "<p>This is a still picture. With JavaScript on, the model itself runs here.</p>"
    )


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("living-model", LivingModel)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
