"""Make the browser's files: widget code, mathematics style sheet, small icon fonts.

Run it with `python -m book.tools.assets`. The packages are those of package-lock.json; the result
is book/static/vendor. Nothing is done when no input has changed.
"""

import contextlib
import io
import os
import re
import subprocess
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from .common import (
    BUILD,
    ROOT,
    Problem,
    alone,
    digest,
    is_stamped,
    new_folder,
    node_and_npm,
    run_command,
    swap,
)

VENDOR = ROOT / "book" / "static" / "vendor"
STAMP = VENDOR / "made-from.txt"
MODULES = ROOT / "node_modules"
MODULES_STAMP = MODULES / ".made-from.txt"
AXE = MODULES / "axe-core" / "axe.min.js"
# Every icon the theme's pages show; the theme ships some two thousand.
ICONS = """
    angle-left angle-right angles-left angles-right arrow-up arrow-up-right-from-square
    bars bell bug chevron-down chevron-left chevron-right chevron-up circle-check
    circle-exclamation circle-half-stroke circle-info circle-play code comment copy
    download expand file file-lines file-pdf github hand-point-right home house lightbulb
    list magnifying-glass moon outdent pen-to-square pencil pencil-alt play quote-left
    rocket search sun terminal triangle-exclamation xmark
"""


def npm_fingerprint() -> str:
    """Fingerprint what decides which npm packages are installed."""
    return digest([ROOT / "package.json", ROOT / "package-lock.json"])


def fingerprint() -> str:
    """Fingerprint everything the assets are made from."""
    sources = [path for path in (ROOT / "web").rglob("*") if path.is_file()]
    versions = [f"{name} {version(name)}" for name in ("pydata-sphinx-theme", "fonttools")]
    return digest([*sources, Path(__file__)], npm_fingerprint(), *versions)


def install_packages(npm: list[str], node: str) -> None:
    """Install the locked npm packages, without running any script of theirs."""
    if is_stamped(MODULES_STAMP, npm_fingerprint()) and AXE.is_file():
        return
    print("Installing the browser packages of package-lock.json ...", flush=True)
    path = os.pathsep.join([str(Path(node).parent), os.environ.get("PATH", "")])
    done = subprocess.run(
        [*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise Problem(
            "The browser packages could not be installed; most often the network is the reason.\n"
            "They are fetched once; afterwards the book builds without a network.\n"
            "Connect and run the same command again. npm said:\n\n"
            + (done.stderr or done.stdout).strip()[-2000:]
        )
    MODULES_STAMP.write_text(npm_fingerprint())


def bundle(node: str, folder: Path) -> None:
    """Bundle widget code and KaTeX's style sheet into the folder."""
    done = subprocess.run(
        [node, str(ROOT / "web" / "build.mjs"), str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise Problem(f"The browser code could not be bundled:\n\n{done.stderr.strip()}")


def subset_icons(folder: Path) -> None:
    """Cut the theme's icon fonts down to the icons in use (275 kB become 6)."""
    from fontTools import subset

    package = find_spec("pydata_sphinx_theme")
    if package is None or package.origin is None:
        raise Problem("The theme is not installed: run `make book`, which installs everything.")
    theme = Path(package.origin).parent / "theme" / "pydata_sphinx_theme" / "static"
    css = (theme / "styles" / "pydata-sphinx-theme.css").read_text(encoding="utf-8")
    codes = set(re.findall(r'--pst-icon[\w-]*:\s*"\\([0-9a-f]+)"', css))
    wanted, found = set(ICONS.split()), set[str]()
    for selectors, code in re.findall(r'([^{}]*):before\{content:"\\([0-9a-f]+)"\}', css):
        names = set(re.findall(r"\.fa-([\w-]+)", selectors)) & wanted
        if names:
            codes.add(code)
            found |= names
    if wanted - found:
        raise Problem(f"The theme has no icon named {', '.join(sorted(wanted - found))}.")
    fonts = folder / "fontawesome" / "webfonts"
    fonts.mkdir(parents=True)
    for name in ("fa-solid-900.woff2", "fa-regular-400.woff2", "fa-brands-400.woff2"):
        arguments = [
            str(theme / "vendor" / "fontawesome" / "webfonts" / name),
            f"--unicodes={','.join(sorted(codes))}",
            "--flavor=woff2",
            f"--output-file={fonts / name}",
        ]
        with contextlib.redirect_stderr(io.StringIO()):
            subset.main(arguments)


def make_assets() -> None:
    """Bring the browser's files up to date."""
    with alone("assets"):
        print_of_inputs = fingerprint()
        if (
            is_stamped(STAMP, print_of_inputs)
            and is_stamped(MODULES_STAMP, npm_fingerprint())
            and AXE.is_file()
        ):
            return
        node, npm = node_and_npm()
        install_packages(npm, node)
        print("Making the book's browser files ...", flush=True)
        with new_folder(BUILD) as folder:
            made = folder / "vendor"
            made.mkdir()
            bundle(node, made)
            subset_icons(made)
            (made / STAMP.name).write_text(print_of_inputs)
            swap(made, VENDOR)


if __name__ == "__main__":
    run_command(make_assets)
