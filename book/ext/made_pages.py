"""Pages made from the chapters when the book is built: the claims, and the list of questions.

Every cell that proves a claim becomes a place to link to, `chapter.ipynb#claim-O1`.
"""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from docutils import nodes
from sphinx.application import Sphinx

from transformer_block.experiments.recorded import study_named

MADE_FROM = "transformer_block"  # the key in a notebook's metadata where book.tools.execute writes
CLAIMS, QUESTIONS = "<!-- claims -->", "<!-- questions -->"


def anchor_claims(app: Sphinx, doctree: nodes.document) -> None:
    """Give the first cell of each claim a name in its page."""
    slugs = app.env.metadata[app.env.docname].setdefault("myst_slugs", {})
    for cell in doctree.findall(nodes.container):
        for name in cell["classes"]:
            slug = name.removeprefix("tag_")
            if slug.startswith("claim-") and slug not in slugs:
                cell["ids"].append(slug)
                slugs[slug] = (cell.line or 0, slug, slug.replace("claim-", "the cell of "))


def fill(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put the claims and the questions where a page asks for them."""
    for mark, make in ((CLAIMS, claims), (QUESTIONS, questions)):
        if mark in source[0]:
            root = Path(app.srcdir)
            for notebook in root.glob("chapters/*.ipynb"):
                app.env.note_dependency(str(notebook))
            source[0] = source[0].replace(mark, make(root))


def claims(root: Path) -> str:
    """Return every claim as a heading, and under it what was verified, with its numbers.

    Raises:
        ValueError: if a claim has no verified sentence; the page would promise too much.
    """
    listed = yaml.safe_load((root / "book" / "claims.yml").read_text("utf-8"))["chapters"]
    pages = []
    for chapter, entry in listed.items():
        if not entry["written"]:
            continue
        notebook = json.loads((root / "chapters" / f"{chapter}.ipynb").read_text("utf-8"))
        found = verified(notebook)
        title = "".join(notebook["cells"][0]["source"]).splitlines()[0].removeprefix("# ")
        pages.append(f"## {title}\n")
        for claim, said in entry["claims"].items():
            if claim not in found:
                raise ValueError(f"{chapter} verifies nothing for claim {claim}; run `make run`")
            cell = f"../chapters/{chapter}.ipynb#claim-{claim}"
            pages.append(f"**[{claim}]({cell})** {said}\n")
            pages += [f"- ✓ {line}" for line in found[claim]]
            pages.append("")
    return "\n".join(pages)


def verified(notebook: dict[str, Any]) -> dict[str, list[str]]:
    """Return, for each claim, the sentences its cells have verified, with numbers and seeds."""
    measured = notebook["metadata"].get(MADE_FROM, {}).get("measured", {})
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    sources = ["".join(cell["source"]) for cell in cells]
    found: dict[str, list[str]] = {}
    for place, cell in enumerate(cells):
        tags = [t for t in cell["metadata"].get("tags", []) if t.startswith("claim-")]
        text = "".join("".join(out.get("text", "")) for out in cell["outputs"])
        told = seeds(sources, place) if tags else []
        for sentence in re.findall(r"^✓ (.*)$", text, flags=re.M):
            line = escape(sentence)
            if numbers := measured.get(sentence):
                line += f" — measured: {'; '.join(escape(number) for number in numbers)}"
            if numbers and told:
                line += f" (seed{'s' * (len(told) > 1)} {', '.join(map(str, told))})"
            for tag in tags:
                found.setdefault(tag.removeprefix("claim-"), []).append(line)
    return found


def escape(text: str) -> str:
    """Return text that Markdown shows as it is."""
    return re.sub(r"([\\`*_{}\[\]<>#|$~])", r"\\\1", text)


def seeds(sources: list[str], place: int) -> list[int]:
    """Return the seeds that a cell's result rests on: those it names, or the cells it uses name.

    A seed is a whole number given as `seed=`, to `manual_seed`, or to a name that begins with
    "seed"; a recorded study's are those of its rows.
    """
    defined: dict[str, int] = {}
    uses: list[set[int]] = []
    trees = [ast.parse(_plain(source)) for source in sources[: place + 1]]
    for number, tree in enumerate(trees):
        names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
        read = {node.id for node in names if isinstance(node.ctx, ast.Load)}
        uses.append({defined[name] for name in read if name in defined})
        stored = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        made = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        defined |= dict.fromkeys(stored | made, number)
    waiting, seen = [place], set[int]()
    while waiting:
        if (number := waiting.pop()) not in seen:
            seen.add(number)
            waiting += uses[number]
    return sorted({seed for number in seen for seed in _seeds_in(trees[number])})


def _seeds_in(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        match node:
            case ast.keyword(arg=str(name), value=given) if name.startswith("seed"):
                yield from _whole(given)
            case ast.Assign(targets=[ast.Name(id=name)], value=given) if name.startswith("seed"):
                yield from _whole(given)
            case (
                ast.comprehension(target=ast.Name(id=name), iter=given)
                | ast.For(target=ast.Name(id=name), iter=given)
            ) if name.startswith("seed"):
                yield from _whole(given)
            case ast.Call(func=ast.Attribute(attr="manual_seed"), args=[given]):
                yield from _whole(given)
            case ast.Call(func=ast.Name(id="study"), args=[ast.Constant(value=str(name)), *_]):
                yield from study_named(name).seeds


def _whole(node: ast.AST) -> Iterator[int]:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return
    values = value if isinstance(value, tuple | list) else [value]
    yield from (v for v in values if isinstance(v, int) and not isinstance(v, bool))


def _plain(source: str) -> str:
    return re.sub(r"^(\s*)[%!].*$", r"\1pass", source, flags=re.M)


def questions(root: Path) -> str:
    """Return the questions of the last chapter without their answers, group by group."""
    file = root / "chapters" / "12-misconceptions.ipynb"
    cells = json.loads(file.read_text("utf-8"))["cells"]
    text = "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    pages = []
    for group in re.split(r"^### ", text, flags=re.M)[1:]:
        asked = re.findall(r"<summary><b>(\d+)\.</b> (.*?)</summary>", group)
        if asked:
            pages.append(f"## {group.splitlines()[0]}\n")
            for number, question in asked:
                said = re.sub(r"<i>(.*?)</i>", r"*\1*", question)
                pages.append(f"{number}. {said}")
            pages.append("")
    return "\n".join(pages)


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to Sphinx."""
    app.connect("source-read", fill)
    app.connect("doctree-read", anchor_claims)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
