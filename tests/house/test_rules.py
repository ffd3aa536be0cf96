"""The rules of the house: style, types, and imports that point down only."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = Path(sys.executable).parent
RULES = {
    "lint": ["ruff", "check", "--no-cache"],
    "format": ["ruff", "format", "--check", "--diff", "--no-cache"],
    "types": ["mypy"],
    "import order": ["lint-imports", "--no-cache"],
}


def run(command: list[str], folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    program = TOOLS / command[0]
    return subprocess.run(
        [program, *command[1:]], cwd=folder, capture_output=True, text=True, encoding="utf-8"
    )


@pytest.mark.parametrize("rule", RULES)
def test_the_rule_holds(rule):
    done = run(RULES[rule])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("rule", "mistake"),
    [
        ("lint", "import os\n"),
        ("format", "x = {  'a':1 }\n"),
        ("types", "def double(x: int) -> str:\n    return 2 * x\n"),
    ],
)
def test_a_broken_rule_is_caught(rule, mistake, tmp_path):
    (tmp_path / "mistake.py").write_text(mistake, encoding="utf-8")
    done = run([*RULES[rule], "mistake.py"], tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr


def test_an_import_that_points_up_is_caught(tmp_path):
    package = tmp_path / "transformer_block"
    shutil.copytree(ROOT / "src" / "transformer_block", package)
    with (package / "norm.py").open("a", encoding="utf-8") as file:
        file.write("\nimport transformer_block.block\n")
    (tmp_path / "pyproject.toml").write_text(
        (ROOT / "pyproject.toml").read_text("utf-8"), encoding="utf-8"
    )
    done = run(["lint-imports", "--no-cache"], tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "norm is not allowed to import transformer_block.block" in done.stdout
