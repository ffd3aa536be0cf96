"""Run published notebooks as Colab does: from the first cell, with nobody there to answer.

    python try_colab.py FOLDER [names ...]

Then every slider of every widget is set from Python, step by step, and must change what is shown.
Nothing that was installed before may have another version afterwards.
"""

import sys
import time
from importlib.metadata import distributions
from pathlib import Path

import nbformat
from nbclient import NotebookClient

MOVE = """
import ipywidgets

_moved = 0
for _box in [w for w in ipywidgets.Widget.widgets.values() if isinstance(w, ipywidgets.VBox)]:
    _sliders = [w for w in _box.children if isinstance(w, ipywidgets.SelectionSlider)]
    for _slider in _sliders:
        _picture, _before = _box.children[-1], _slider.index
        for _index in [*range(len(_slider.options)), _before]:
            if _index == _slider.index:
                continue
            _old = _picture.value
            _slider.index = _index
            if _picture.value == _old:
                raise AssertionError(f"{_slider.description} = {_slider.label} changes nothing")
            _moved += 1
print(_moved)
"""


def versions() -> dict[str, str]:
    """Return what is installed beside the package, with versions."""
    return {each.metadata["Name"]: each.version for each in distributions()}


def run(path: Path) -> int:
    """Run a notebook from its first cell, then move its sliders; return the number of moves."""
    notebook = nbformat.read(path, as_version=4)
    wanted = sum("explore(" in c.source for c in notebook.cells if c.cell_type == "code")
    notebook.cells.append(nbformat.v4.new_code_cell(MOVE))
    client = NotebookClient(notebook, timeout=1800, resources={"metadata": {"path": path.parent}})
    client.execute()
    moved = int(notebook.cells[-1].outputs[0].text)
    if wanted and not moved:
        sys.exit(f"{path.name} has widgets, but no slider was found")
    return moved


def main() -> None:
    """Run the named notebooks, or all."""
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    found = sorted(folder.glob("*.ipynb"))
    chosen = [p for p in found if not names or any(p.name.startswith(name) for name in names)]
    if not chosen:
        sys.exit(f"{folder} holds no such notebook")
    before = versions()
    for path in chosen:
        began = time.monotonic()
        moved = run(path)
        print(f"{path.stem}: runs, {moved} moves of sliders, {time.monotonic() - began:.0f} s")
    after = versions()
    changed = {name for name in before if after.get(name) != before[name]}
    if changed - {"transformer-block"}:
        sys.exit(f"the notebooks changed what was there: {', '.join(sorted(changed))}")
    print(
        f"added: {', '.join(sorted(after.keys() - before.keys())) or 'nothing'}; changed: nothing"
    )


if __name__ == "__main__":
    main()
