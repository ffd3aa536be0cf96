"""Execute chapters from their text and store them, with outputs, as notebooks.

`python -m book.tools.execute [names...]` runs chapters/*.md, each in a kernel of its own. Running
it twice changes no byte: nothing of the time, the machine or a random name is kept.
"""

import argparse
import ast
import hashlib
import inspect
import json
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jupytext
import nbformat
from ipykernel.kernelspec import RESOURCES, get_kernel_dict
from IPython.core.inputtransformer2 import TransformerManager
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

from transformer_block.experiments.recorded import studies
from transformer_block.fingerprint import fingerprint
from transformer_block.notebook import measurements

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = ROOT / "chapters"
MADE_FROM = "transformer_block"  # the key in a notebook's metadata that holds its digests
STATE = "application/vnd.jupyter.widget-state+json"
PACKAGE = "transformer_block"
VIEW = "application/vnd.jupyter.widget-view+json"
CLOCK = "clock"  # the tag of a cell whose output is the time something took
LONGEST_CELL = 900  # seconds


class ChapterError(Exception):
    """A chapter did not run through."""


class _ThisPython(KernelSpecManager):
    """Runs the kernel with the Python that runs this, whatever is installed for the user."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        return KernelSpec(resource_dir=RESOURCES, **get_kernel_dict())


class _Kernel(AsyncKernelManager):
    """A kernel that the client starts and also stops."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(kernel_spec_manager=_ThisPython(), **settings)


def read(text: Path) -> Any:
    """Read a chapter's text as a notebook without outputs."""
    notebook = jupytext.read(text, fmt="md:myst")
    seen: set[str] = set()
    for cell in notebook.cells:
        # an id made of the content: a new cell leaves the ids of all others as they were
        base, again = _hash([cell.cell_type, cell.source])[:8], 0
        while (name := f"{base}{again or ''}") in seen:
            again += 1
        seen.add(name)
        cell["id"] = name
        if "hide-input" in cell.metadata.get("tags", []):
            cell.metadata["jupyter"] = {"source_hidden": True}  # folded in JupyterLab, too
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    notebook.metadata = nbformat.from_dict(  # type: ignore[no-untyped-call]  # nbformat is untyped
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {
                "file_extension": ".py",
                "mimetype": "text/x-python",
                "name": "python",
                "pygments_lexer": "ipython3",
            },
        }
    )
    return notebook


def code_of(notebook: Any) -> str:
    """Return a notebook's code as one Python text; magics become calls."""
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    manager = TransformerManager()  # type: ignore[no-untyped-call]  # IPython is untyped
    return "\n".join(map(manager.transform_cell, cells))


def made_from(notebook: Any, source: Path = ROOT / "src") -> dict[str, str]:
    """Return what a stored notebook was made from: code with all it uses, rows, shown sources."""
    code = code_of(notebook)
    told = {node.value for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant)}
    kept = [study.stored() for name, study in studies().items() if name in told]
    rows = [repr((study.get("torch"), study.get("rows"))) for study in kept]
    return {
        "code": fingerprint(code=code, source=source),
        "rows": _hash(rows),
        "shown": _hash(shown_sources(code)),
    }


def shown_sources(code: str) -> Iterator[str]:
    """Yield the sources that a chapter prints: the fingerprint leaves their docstrings out."""
    imported: dict[str, tuple[str, str]] = {}
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(PACKAGE):
            imported |= {each.asname or each.name: (node.module, each.name) for each in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"show_source", "show_study"}:
            for named in node.args:
                first, *steps = ast.unparse(named).split(".")
                if first in imported:
                    yield inspect.getsource(inspect.unwrap(_found(*imported[first], *steps)))
                elif isinstance(named, ast.Constant) and named.value in studies():
                    yield inspect.getsource(studies()[named.value].function)


def _found(module: str, name: str, *steps: str) -> Any:
    """Return what `from module import name` and then `name.steps` give."""
    found = getattr(import_module(module), name, None) or import_module(f"{module}.{name}")
    for step in steps:
        found = getattr(found, step)
    return found


def _hash(parts: Iterable[str]) -> str:
    total = hashlib.sha256()
    for part in parts:
        total.update(f"{len(part)}:{part}".encode())
    return total.hexdigest()


def execute(text: Path) -> Any:
    """Run a chapter in a fresh kernel and return it with stable outputs.

    Raises:
        ChapterError: a cell raised, or wrote to stderr; says which chapter and cell.
    """
    notebook = read(text)
    digests: dict[str, Any] = made_from(notebook)
    client = NotebookClient(
        notebook,
        kernel_manager_class=_Kernel,
        kernel_name="python3",
        timeout=LONGEST_CELL,
        record_timing=False,
        allow_errors=True,  # judged below, with better words
        force_raise_errors=False,
        extra_arguments=["--log-level=ERROR"],  # it warns of its own transport, which is local
        resources={"metadata": {"path": str(text.parent)}},
    )
    with TemporaryDirectory() as folder:
        written = Path(folder) / "measured"
        # neither a profile of the reader's nor their start-up file
        own = {"IPYTHONDIR": folder, "PYTHONSTARTUP": "", measurements.FILE: str(written)}
        with client.setup_kernel(env={**os.environ, **own}):
            for place, cell in enumerate(notebook.cells):
                if cell.cell_type == "code":
                    client.execute_cell(cell, place)
                    _judge(text.stem, cell)
            client.set_widgets_metadata()
        digests["measured"] = _measured(written)
    _settle(notebook)
    notebook.metadata[MADE_FROM] = digests
    nbformat.validate(notebook)
    return notebook


def _measured(file: Path) -> dict[str, list[str]]:
    """Return the numbers that `verify` wrote down, by sentence."""
    lines = file.read_text("utf-8").splitlines() if file.is_file() else []
    entries = [json.loads(line) for line in lines]
    return {entry["sentence"]: entry["measured"] for entry in entries if entry["measured"]}


def _judge(chapter: str, cell: Any) -> None:
    """Raise if a cell failed, or wrote to stderr; a warning is an error here."""
    may_raise = "raises-exception" in cell.metadata.get("tags", [])
    failed = [out for out in cell.outputs if out.output_type == "error"]
    if failed and not may_raise:
        what = f"{failed[0].ename}: {failed[0].evalue}"
    elif may_raise and not failed:
        what = "it is tagged raises-exception, but raised nothing"
    elif said := [out.text for out in cell.outputs if out.get("name") == "stderr"]:
        what = f"it wrote to stderr: {''.join(said).strip()}"
    else:
        return
    source = "\n".join(f"    {line}" for line in cell.source.splitlines())
    raise ChapterError(f"{chapter}: this cell failed\n{source}\n  {what}")


def _settle(notebook: Any) -> None:
    """Remove from a run notebook what would differ the next time."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if "outputs" in cell:
            cell.outputs = _merged(cell.outputs)
        for out in cell.get("outputs", []):
            if out.output_type == "error":
                # a traceback holds this machine's paths; the last line says it all
                out.traceback = [f"{out.ename}: {out.evalue}"]
    models = notebook.metadata.get("widgets", {}).get(STATE, {}).get("state", {})
    if not models:
        notebook.metadata.pop("widgets", None)
        return
    number = {name: f"{place:032x}" for place, name in enumerate(models, 1)}

    def renumber(value: Any) -> Any:
        if isinstance(value, dict):
            return {number.get(key, key): renumber(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [renumber(inner) for inner in value]
        if isinstance(value, str):
            bare = value.removeprefix("IPY_MODEL_")
            return value.replace(bare, number[bare]) if bare in number else value
        return value

    notebook.metadata.widgets = renumber(notebook.metadata.widgets)
    for cell in notebook.cells:
        for out in cell.get("outputs", []):
            if VIEW in out.get("data", {}):
                out.data[VIEW] = renumber(out.data[VIEW])


def _merged(outputs: list[Any]) -> list[Any]:
    """Join pieces of one stream: where they are cut depends on how busy the machine was."""
    merged: list[Any] = []
    for out in outputs:
        if merged and out.output_type == "stream" and merged[-1].get("name") == out.name:
            merged[-1].text += out.text
        else:
            merged.append(out)
    return merged


def keep_clocks(notebook: Any, path: Path) -> None:
    """Give cells that show times what they showed last, so that running twice changes no byte.

    Times are new in each run and say nothing new, unless the code or the rows have changed.
    """
    try:
        old: Any = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]  # untyped
    except (OSError, ValueError):  # there is none yet, or it is no notebook
        return
    made = [{**each.metadata.get(MADE_FROM, {}), "measured": None} for each in (notebook, old)]
    if made[0] != made[1]:
        return
    shown = {cell.get("id"): cell.get("outputs") for cell in old.cells}
    for cell in notebook.cells:
        if CLOCK in cell.metadata.get("tags", []) and shown.get(cell.id):
            cell.outputs = shown[cell.id]


def store(notebook: Any, path: Path) -> bool:
    """Write a notebook in one step and return whether that changed anything."""
    # models stay in the order in which they were made, so keys are not sorted there by chance
    data = nbformat.writes(notebook)  # type: ignore[no-untyped-call]  # nbformat is untyped
    data = data.rstrip("\n") + "\n"
    if path.exists() and path.read_text("utf-8") == data:
        return False
    beside = path.with_suffix(".ipynb.new")
    beside.write_text(data, "utf-8", newline="\n")
    os.replace(beside, path)
    return True


def main(names: list[str] | None = None) -> int:
    """Execute the named chapters, or all; return 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m book.tools.execute", description=__doc__)
    parser.add_argument("names", nargs="*", help="09, 09-training or chapters/09-training.md")
    parser.add_argument("--chapters", type=Path, default=CHAPTERS, help="where they are")
    asked = parser.parse_args(names)
    texts = sorted(asked.chapters.glob("*.md"))
    chosen = []
    for name in asked.names:
        stem = re.sub(r"\.(md|ipynb)$", "", Path(name).name)
        found = [t for t in texts if t.stem == stem or t.stem.split("-")[0] == stem]
        if not found:
            print(f"no chapter {name!r}; there are: {', '.join(t.stem for t in texts) or 'none'}")
            return 2
        chosen += found
    failures = 0
    for text in chosen or texts:
        began = time.monotonic()
        try:
            notebook, path = execute(text), text.with_suffix(".ipynb")
            keep_clocks(notebook, path)
            changed = store(notebook, path)
        except ChapterError as failure:
            failures += 1
            print(f"{failure}\n  {text.with_suffix('.ipynb').name} was left as it was.", flush=True)
            continue
        seconds = time.monotonic() - began
        print(f"{text.stem}: {seconds:.0f} s, {'stored' if changed else 'unchanged'}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
