"""Link the first use of each glossary word on a chapter's page to the glossary.

It happens when the book is built, so that the chapters' own text stays plain.
"""

import re
from functools import cache
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

GLOSSARY = "book/glossary"
# Words so common that a link would only disturb.
QUIET = {"token", "block", "head", "value", "key", "loss", "bound", "score", "activation", "prefix"}
PLAIN = (
    nodes.reference,
    nodes.title,
    nodes.literal,
    nodes.math,
    nodes.raw,
    nodes.strong,
    nodes.emphasis,
)


@cache
def terms(root: Path) -> dict[str, str]:
    """Return the glossary's words with the anchor of each."""
    text = (root / f"{GLOSSARY}.md").read_text("utf-8")
    words = re.findall(r"^### (.+)$", text, flags=re.M)
    return {word: nodes.make_id(word) for word in words if word not in QUIET}


def link(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Turn the first use of each word in running text into a link."""
    if not docname.startswith("chapters/") or app.builder.format != "html":
        return
    left = dict(terms(Path(app.srcdir)))
    for paragraph in list(doctree.findall(nodes.paragraph)):
        for text in list(paragraph.findall(nodes.Text)):
            if not _inside(text, PLAIN):
                _link(app, docname, text, left)


def _link(app: Sphinx, docname: str, text: nodes.Text, left: dict[str, str]) -> None:
    longest_first = sorted(left, key=len, reverse=True)
    pattern = "|".join(re.escape(word) for word in longest_first)
    found = re.search(rf"(?<![\w-])({pattern})s?(?![\w-])", text) if left else None
    if found is None:
        return
    address = app.builder.get_relative_uri(docname, GLOSSARY) + "#" + left.pop(found[1])
    said = found[0]
    reference = nodes.reference(
        said, said, refuri=address, internal=True, classes=["glossary-word"]
    )
    before, after = text[: found.start()], nodes.Text(text[found.end() :])
    text.parent.replace(text, [nodes.Text(before), reference, after])
    _link(app, docname, after, left)


def _inside(node: nodes.Node, kinds: tuple[type, ...]) -> bool:
    while node := node.parent:
        if isinstance(node, kinds):
            return True
    return False


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to Sphinx."""
    app.connect("doctree-resolved", link)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
