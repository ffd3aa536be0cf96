"""At the top of each chapter: the way to run it, in Colab or on the reader's machine."""

from html import escape
from typing import Any

from sphinx.application import Sphinx

HOW = "book/how-to-read"


def line(colab: str, page: str, how: str) -> str:
    """Return the line of a page.

    Args:
        colab: the address under which Colab opens the published notebooks; "": there are none.
        page: its name.
        how: leads to the page that says how to run it locally.

    >>> line("", "chapters/01-heads", "how.html")
    '<p class="tb-run">Run this chapter on your machine with <code>make lab</code>: <a href="how.html#on-your-machine">how</a>.</p>'
    """  # noqa: E501 (one line of HTML)
    local = f'<a href="{escape(how)}#on-your-machine">'
    if not colab:
        return (
            '<p class="tb-run">Run this chapter on your machine with '
            f"<code>make lab</code>: {local}how</a>.</p>"
        )
    button = f'<a class="tb-button" href="{escape(colab)}{page}.ipynb">'
    return (
        f'<p class="tb-run">{button}Run this chapter in Colab</a> '
        f"or {local}on your machine</a>.</p>"
    )


def add_line(
    app: Sphinx, page: str, _template: str, context: dict[str, Any], _doctree: object
) -> None:
    """Put the line under a chapter's title."""
    if page.startswith("chapters/") and "body" in context:
        how = app.builder.get_relative_uri(page, HOW)
        added = line(app.config.book_colab, page, how)
        context["body"] = context["body"].replace("</h1>", f"</h1>\n{added}", 1)


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to Sphinx; publish fills in where Colab finds the notebooks."""
    app.add_config_value("book_colab", "", "html")
    app.connect("html-page-context", add_line)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
