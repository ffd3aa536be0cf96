"""Chinese passages say that they are Chinese, so that a screen reader changes its voice."""

import json
import re
from typing import Any

from docutils import nodes
from myst_nb.sphinx_ import NbMetadataCollector
from sphinx.application import Sphinx

HAN = r"\u3400-\u4dbf\u4e00-\u9fff"
PASSAGE = re.compile(rf"[{HAN}](?:[{HAN}\s\u3000-\u303f\uff00-\uffef·…]*[{HAN}])?[。！？」』）]*")
TAG = re.compile(r"""(<!--.*?-->|<(?:[^<>"']|"[^"]*"|'[^']*')*>)""", re.DOTALL)
CLOSED = {"script", "style", "title", "textarea", "option", "annotation"}  # hold text only
VOID = {"area", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}


def mark(html: str) -> str:
    """Wrap each Chinese passage of a piece of HTML in an element with its language.

    >>> mark('<p title="天">The weather (天气).</p>')
    '<p title="天">The weather (<span lang="zh">天气</span>).</p>'
    >>> mark('<svg><title>雨</title><text>雨</text></svg>')
    '<svg><title>雨</title><text><tspan lang="zh">雨</tspan></text></svg>'
    >>> mark('<i lang="zh">今天<b>下雨</b></i>')
    '<i lang="zh">今天<b>下雨</b></i>'
    """
    if not re.search(f"[{HAN}]", html):
        return html
    opened: list[tuple[str, bool]] = []  # the elements around: their names, and if text is left
    pieces = TAG.split(html)
    for place, piece in enumerate(pieces):
        if place % 2 == 0:
            if not (opened and opened[-1][1]):
                around = "tspan" if any(name == "svg" for name, _ in opened) else "span"
                pieces[place] = PASSAGE.sub(rf'<{around} lang="zh">\g<0></{around}>', piece)
        elif found := re.match(r"<(/?)([\w-]+)", piece):
            name = found[2].lower()
            if found[1]:
                at = max((i for i, (one, _) in enumerate(opened) if one == name), default=None)
                del opened[len(opened) if at is None else at :]
            elif not piece.endswith("/>") and name not in VOID:
                left = name in CLOSED or bool(re.search(r'\slang="zh', piece))
                opened.append((name, left or bool(opened and opened[-1][1])))
    return "".join(pieces)


def mark_page(
    app: Sphinx, page: str, _template: str, context: dict[str, Any], _doctree: object
) -> None:
    """Mark the page's text, and what its widgets will show."""
    if "body" in context:
        context["body"] = mark(context["body"])


def mark_widgets(app: Sphinx, _doctree: nodes.document, docname: str) -> None:
    """Mark the HTML that the page's widgets carry with them."""
    _, script = NbMetadataCollector.get_js_files(app.env, docname).get(
        "ipywidgets_state", (None, None)
    )
    if script is None:
        return
    stored = json.loads(script["body"])
    for model in stored["state"].values():
        if model["model_name"] == "HTMLModel":
            model["state"]["value"] = mark(model["state"].get("value", ""))
    script["body"] = json.dumps(stored).replace("</", "<\\/")


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to Sphinx, after the still pictures are made."""
    app.connect("doctree-resolved", mark_widgets, priority=900)
    app.connect("html-page-context", mark_page, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
