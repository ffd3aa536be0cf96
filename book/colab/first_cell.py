# @title First run this cell: it installs the book's package
# Nothing that is here already is changed: only what is missing is added.
import importlib
import json
import re
import subprocess
import sys
import tempfile
from importlib.metadata import Distribution, distributions

REPOSITORY, COMMIT, NEEDS = "", "", [""]  # filled in when the book is published
EXACT = r"\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?(\+[a-z\d.]+)?"


def here() -> dict[str, Distribution]:
    """Return what is installed, by name."""
    found: dict[str, Distribution] = {}
    for each in distributions():
        name = re.sub(r"[-_.]+", "-", each.metadata["Name"] or "").lower()
        found.setdefault(name, each)
    return found


def install(*what: str) -> None:
    """Let pip install this without a word, unless it fails."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input"]
    done = subprocess.run([*pip, *what], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"pip could not install {what[-1]}:\n{done.stderr}")
    importlib.invalidate_caches()


book = here().get("transformer-block")
origin = json.loads(book.read_text("direct_url.json") or "{}") if book else {}
own_copy = "dir_info" in origin  # installed from a folder: the reader's own work
if not own_copy and origin.get("vcs_info", {}).get("commit_id") != COMMIT:
    install("--no-deps", "--force-reinstall", f"git+{REPOSITORY}@{COMMIT}")
    if "transformer_block" in sys.modules:
        print("Another version is in use: restart the session, then run all cells.")
if missing := [name for name in NEEDS if name not in here()]:
    versions = {name: each.version for name, each in here().items()}
    with tempfile.TemporaryDirectory() as folder:
        kept = f"{folder}/kept.txt"
        with open(kept, "w") as file:
            file.writelines(f"{n}=={v}\n" for n, v in versions.items() if re.fullmatch(EXACT, v))
        install("--constraint", kept, *missing)
print("The book's package is ready.")
