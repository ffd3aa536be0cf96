"""Pages that stand on their own: a still picture in each widget's place, strict mathematics."""

import functools
import html
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from typing import Any

from docutils import nodes
from myst_nb.sphinx_ import NbMetadataCollector
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinxcontrib import katex

VIEW = "application/vnd.jupyter.widget-view+json"


def row(value: dict[str, Any], shown: object) -> str:
    """One control as a line of text: its label and what it is set to."""
    label = html.escape(value.get("description") or "")
    return (
        '<div class="widget-still-row">'
        f"<span>{label}</span><span>{html.escape(str(shown))}</span></div>"
    )


def still(state: dict[str, Any], model_id: str) -> str:
    """What the widget shows before anyone touches it: controls as rows, the chosen picture."""
    model = state[model_id.removeprefix("IPY_MODEL_")]
    value, name = model["state"], model["model_name"]
    if name in {"HTMLModel", "HTMLMathModel", "LabelModel"}:
        text = value.get("value", "")
        return f"<div>{html.escape(text) if name == 'LabelModel' else text}</div>"
    if name == "StackModel":
        chosen = value.get("selected_index")
        return "" if chosen is None else still(state, value["children"][chosen])
    if name in {"SelectionSliderModel", "DropdownModel", "ToggleButtonsModel", "RadioButtonsModel"}:
        index = value.get("index")
        return row(value, "" if index is None else value["_options_labels"][index])
    if name in {"IntSliderModel", "FloatSliderModel", "BoundedIntTextModel", "IntTextModel"}:
        return row(value, value.get("value", 0))
    if name == "CheckboxModel":
        return row(value, "yes" if value.get("value") else "no")
    inner = "".join(still(state, child) for child in value.get("children", []))
    if inner and name in {"BoxModel", "HBoxModel"}:
        return f'<div class="widget-still-across">{inner}</div>'
    return inner


def add_stills(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Put each widget's still picture before the script tag that the living widget will replace."""
    if app.builder.format != "html":
        return
    _, script = NbMetadataCollector.get_js_files(app.env, docname).get(
        "ipywidgets_state", (None, None)
    )
    if script is None:
        return
    state = json.loads(script["body"])["state"]
    for node in doctree.findall(nodes.raw):
        if VIEW in node.astext():
            inside = re.sub(r"</?script[^>]*>", "", node.astext())
            model_id = json.loads(inside)["model_id"]
            picture = f'<div class="widget-still">{still(state, model_id)}</div>'
            node.children = [nodes.Text(picture + node.astext())]


# What others put into the page and a screen reader stumbles over → what stands there instead.
MENDED = {
    '<div role="list" class="citation-list">': "<div>",  # its entries are no listitems
    ' aria-label="Toggle hidden content"': "",  # a folded cell says what it is: its own text
}


def mend(
    _app: Sphinx, _page: str, _template: str, context: dict[str, Any], _doctree: object
) -> None:
    """Mend the page's body, and see to its storage before the theme's first script asks for it."""
    for found, instead in MENDED.items():
        if "body" in context:
            context["body"] = context["body"].replace(found, instead)
    script = f'<script src="{context["pathto"]("_static/storage.js", 1)}"></script>'
    context["metatags"] = context.get("metatags", "") + script


def no_second_search(_: Sphinx, config: Config) -> None:
    """Keep the theme from adding a bar for a second search button."""
    config.html_theme_options.setdefault("navbar_persistent", [])


def patient_start(start: Callable[[], Any], tries: int = 20) -> Any:
    """Start KaTeX's server; on a busy machine its socket exists a moment before it listens."""
    for _ in range(tries - 1):
        try:
            return start()
        except ConnectionRefusedError:
            time.sleep(0.1)
    return start()


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to Sphinx."""
    katex.NODEJS_BINARY = os.environ.get("BOOK_NODE") or shutil.which("node")
    katex.STARTUP_TIMEOUT = katex.RENDER_TIMEOUT = 60.0  # a busy machine is not a broken one
    katex.KaTeXServer.start = functools.partial(patient_start, katex.KaTeXServer.start)
    katex.KATEX_DEFAULT_OPTIONS.update(throwOnError=True, strict="error")
    app.connect("html-page-context", mend)
    app.connect("config-inited", no_second_search)
    app.connect("doctree-resolved", add_stills)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
