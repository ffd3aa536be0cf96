"""The tests' own order, and the time that a chapter may take."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
CHAPTERS = sorted((ROOT / "chapters").glob("*.md"))
LONGEST = {"09-training": 180}  # seconds; all others a minute


def stated_seconds(text):
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("root_conftest", ROOT / "conftest.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.stated_seconds(text)


@pytest.mark.parametrize("text", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_says_how_long_the_machine_takes(text):
    said = stated_seconds(text.read_text("utf-8"))
    assert said is not None, "its first lines say: The machine: under N seconds."
    assert said <= LONGEST.get(text.stem, 60)


@pytest.fixture
def folder(tmp_path):
    """A folder with our conftest, without the grace for a kernel's start."""
    conftest = (ROOT / "conftest.py").read_text("utf-8")
    assert "START = 15" in conftest
    (tmp_path / "conftest.py").write_text(conftest.replace("START = 15", "START = 0"), "utf-8")
    (tmp_path / "src" / "transformer_block").mkdir(parents=True)
    (tmp_path / "src" / "transformer_block" / "__init__.py").touch()
    (tmp_path / "pytest.ini").touch()
    return tmp_path


def run(folder, *options, source="src"):
    """Run pytest there, with no plugin but those that the options name."""
    alone = {"PYTHONPATH": str(folder / source), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options],
        cwd=folder,
        env={**os.environ, **alone},
        capture_output=True,
        text=True,
        encoding="utf-8",
    )


@pytest.mark.parametrize(("said", "code"), [("under 60 seconds", 0), ("under 0 seconds", 1)])
def test_a_chapter_over_its_time_fails(folder, said, code):
    cells = [nbformat.v4.new_code_cell("x = 1"), nbformat.v4.new_code_cell("y = 2")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, folder / "01-x.ipynb")
    (folder / "01-x.md").write_text(f"You need: sums. The machine: {said}.\n", "utf-8")
    done = run(folder, "-p", "nbval.plugin", "--nbval", "--nbval-current-env", "01-x.ipynb")
    assert done.returncode == code, done.stdout
    assert ("01-x.ipynb took" in done.stdout) == (code == 1)


def test_the_longest_file_starts_first(folder):
    for name, seconds in {"test_a": 0, "test_b": 0.3}.items():
        (folder / f"{name}.py").write_text(
            f"import time\ndef test_1(): time.sleep({seconds})\ndef test_2(): pass\n"
        )
    orders = [re.findall(r"test_[ab]", run(folder, "-v").stdout)[:2] for _ in range(2)]
    assert orders == [["test_a", "test_b"], ["test_b", "test_a"]]


def test_another_folder_s_package_is_not_tested(folder):
    (folder / "test_a.py").write_text("def test_1(): pass\n")
    other = folder.parent / "other" / "src"
    (other / "transformer_block").mkdir(parents=True)
    (other / "transformer_block" / "__init__.py").touch()
    done = run(folder, source=other)
    assert done.returncode == 4
    assert "would come from" in done.stdout + done.stderr
