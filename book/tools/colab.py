"""Make the notebooks that Colab opens, from the stored ones.

    python -m book.tools.colab FOLDER

writes FOLDER/chapters/*.ipynb. Each begins with a cell that installs the package at exactly the
commit that is published, from the repository that publishes it: CI's, else git's origin. Only
the standard library is needed.
"""

import argparse
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .common import ROOT, Problem, run_command
from .origin import colab_folder, commit, github_address, repository_address

CELL = ROOT / "book" / "colab" / "first_cell.py"
EXTRAS = ("notebook", "pretrained")  # of pyproject.toml: what chapters need beside the package
VIEW = "application/vnd.jupyter.widget-view+json"
FILLED = 'REPOSITORY, COMMIT, NEEDS = "", "", [""]  # filled in when the book is published\n'


def needs() -> Iterator[str]:
    """Yield the names of what chapters need, as pyproject.toml has them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    for need in [*project["dependencies"], *(one for extra in EXTRAS for one in extras[extra])]:
        yield re.split(r"[^\w.-]", need, maxsplit=1)[0].lower().replace("_", "-")


def install_cell(repository: str, at: str) -> dict[str, Any]:
    """Return the cell that installs the package at this commit of this repository."""
    names = ",\n    ".join(f'"{name}"' for name in needs())
    filled = f'REPOSITORY = "{repository}"\nCOMMIT = "{at}"\nNEEDS = [\n    {names},\n]\n'
    before, after = CELL.read_text("utf-8").split(FILLED)
    return {
        "cell_type": "code",
        "id": "install",
        "execution_count": None,
        "metadata": {"cellView": "form", "jupyter": {"source_hidden": True}},
        "outputs": [],
        "source": (before + filled + after).rstrip("\n").splitlines(keepends=True),
    }


def published(notebook: dict[str, Any], repository: str, at: str) -> dict[str, Any]:
    """Return a stored notebook as Colab is to open it.

    The install cell comes first. Widgets are left out of the stored outputs: they are
    ipywidgets 8's, which Colab does not have; run, the same cells show Colab's. Links lead to
    the other published notebooks, and to the texts of this commit.
    """
    cells = [install_cell(repository, at), *map(_without_widgets, notebook["cells"])]
    if github_address(repository):
        for cell in cells:
            if cell["cell_type"] == "markdown":
                cell["source"] = _linked("".join(cell["source"]), repository, at)
    metadata = {key: value for key, value in notebook["metadata"].items() if key != "widgets"}
    return {**notebook, "cells": cells, "metadata": metadata}


def _without_widgets(cell: dict[str, Any]) -> dict[str, Any]:
    if "outputs" not in cell:
        return dict(cell)
    outputs = [
        {**out, "data": {kind: value for kind, value in out["data"].items() if kind != VIEW}}
        if "data" in out
        else out
        for out in cell["outputs"]
    ]
    return {**cell, "outputs": outputs}


def _linked(text: str, repository: str, at: str) -> str:
    """Make the links of a chapter absolute: Colab knows no folder around a notebook."""

    def chapter(found: re.Match[str]) -> str:
        return f"]({colab_folder(repository)}chapters/{found[1]}.ipynb"

    text = re.sub(r"\]\((\d\d-[\w-]+)\.ipynb", chapter, text)
    return re.sub(r"\]\(\.\./(book/[\w-]+\.md)", rf"]({repository}/blob/{at}/\1", text)


def write(folder: Path, repository: str, at: str, chapters: Path) -> list[Path]:
    """Write the published notebooks of all stored chapters; return their paths."""
    stored = sorted(chapters.glob("*.ipynb"))
    if not stored:
        raise Problem(f"{chapters} holds no executed chapter; run `make run` first.")
    (folder / "chapters").mkdir(parents=True, exist_ok=True)
    written = []
    for path in stored:
        notebook = published(json.loads(path.read_text("utf-8")), repository, at)
        place = folder / "chapters" / path.name
        text = json.dumps(notebook, ensure_ascii=False, indent=1) + "\n"
        place.write_text(text, encoding="utf-8", newline="\n")
        written.append(place)
    return written


def main() -> None:
    """Read the command line and write the notebooks."""
    parser = argparse.ArgumentParser(
        prog="python -m book.tools.colab",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="where to")
    parser.add_argument("--repository", default=repository_address(), help="to install from")
    parser.add_argument("--commit", default=commit(), help="to install")
    parser.add_argument("--chapters", type=Path, default=ROOT / "chapters", help="stored notebooks")
    asked = parser.parse_args()
    if not asked.repository or not asked.commit:
        raise Problem(
            "Colab installs the package from a repository on GitHub, and this folder names none.\n"
            "Push it to one (git remote add origin …), or name one: --repository and --commit."
        )
    written = write(asked.folder, asked.repository, asked.commit, asked.chapters)
    print(f"{len(written)} notebooks for Colab are in {asked.folder / 'chapters'}.")


if __name__ == "__main__":
    run_command(main)
