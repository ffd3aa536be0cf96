"""Cut a release's notes from CHANGELOG.md.

    python -m book.tools.notes v0.1.0

Its section is printed, without the heading. It uses Python's own library only.
"""

import argparse
import re
import sys
import tomllib
from pathlib import Path

from .common import ROOT, Problem, run_command

HEADING = re.compile(r"^## (?P<version>\S+) – (?P<date>.+)$", flags=re.M)


def notes(tag: str, root: Path = ROOT) -> str:
    """Return the changelog's section of the version that a tag names: v0.1.0 names 0.1.0.

    Raises:
        Problem: the tag names another version than pyproject.toml, or the changelog has no section
            for it, an empty one, or one without a date.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = project["version"]
    if tag != f"v{version}":
        raise Problem(
            f"The tag is {tag}, but pyproject.toml has version {version}: "
            f"tag v{version}, or change the version first."
        )
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = list(HEADING.finditer(changelog))
    ends = [*(heading.start() for heading in headings[1:]), len(changelog)]
    found = [(h, end) for h, end in zip(headings, ends, strict=True) if h["version"] == version]
    if not found:
        raise Problem(f"CHANGELOG.md has no section “## {version} – date”: write it.")
    heading, end = found[0]
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", heading["date"]):
        raise Problem(
            f"CHANGELOG.md calls {version} “{heading['date']}”: "
            "put the day of the release there, as 2026-01-31."
        )
    section = changelog[heading.end() : end].strip()
    if not section:
        raise Problem(f"CHANGELOG.md says nothing of {version}: say what has changed.")
    return section + "\n"


def main() -> None:
    """Print the notes of the tag that is named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tag", help="the tag of the release, as v0.1.0")
    # UTF-8 whatever the console is: the notes go into a file
    sys.stdout.buffer.write(notes(parser.parse_args().tag).encode("utf-8"))


if __name__ == "__main__":
    run_command(main)
