"""Run the tests with other versions than the pinned ones.

    nox --list                              every session
    nox -s "versions-3.11(oldest)"          the lower bounds of pyproject.toml
    nox -s "versions-3.11(oldest)" -- tests/notebook
    nox -s newest                           the whole book, with the newest of everything

What is supported stands in pyproject.toml only: Pythons among its classifiers, ranges among its
dependencies. “Oldest” is the oldest version within the range that has a wheel for the Python at
hand. TORCH=torch==2.13.0 takes that torch instead, where its oldest cannot be had.
"""

import os
import re
from collections.abc import Iterator

import nox

nox.needs_version = ">=2025.2"
nox.options.default_venv_backend = "uv"
nox.options.error_on_missing_interpreters = True

PROJECT = nox.project.load_toml("pyproject.toml")["project"]
PYTHONS = nox.project.python_versions(nox.project.load_toml("pyproject.toml"))
# What runs the tests; its ranges are looked up. ipykernel and PyYAML come with them.
TESTERS = [
    "beartype",
    "executing",
    "hypothesis",
    "jupytext",
    "nbclient",
    "nbval",
    "pytest",
    "pytest-cov",
    "pytest-xdist",
    "scipy",
    "transformers",
]
VERSION_OF_TORCH = "from importlib.metadata import version; print(version('torch'))"
UNITS = ["tests/package", "tests/experiments", "tests/notebook", "tests/figures"]


def needs() -> Iterator[str]:
    """Yield the requirements of the package, its notebooks and its tests, as pyproject has them."""
    extras = PROJECT["optional-dependencies"]
    yield from [*PROJECT["dependencies"], *extras["notebook"], *extras["pretrained"]]
    ranges = {re.match(r"[\w-]+", one)[0]: one for one in [*extras["book"], *extras["dev"]]}
    yield from (ranges[name] for name in TESTERS)


def install(session: nox.Session, which: str, *wanted: str) -> None:
    """Install the oldest or the newest versions that have wheels."""
    resolution = {"oldest": "lowest-direct", "newest": "highest"}[which]
    session.install(f"--resolution={resolution}", "--only-binary=:all:", *wanted)


@nox.session(python=PYTHONS, default=False)
@nox.parametrize(
    ("torch", "rest"),
    [
        nox.param("oldest", "oldest", id="oldest"),
        nox.param("newest", "newest", id="newest"),
        nox.param("oldest", "newest", id="old-torch"),
        nox.param("newest", "oldest", id="new-torch"),
    ],
)
def versions(session: nox.Session, torch: str, rest: str) -> None:
    """Run the package's tests and all chapters; stored outputs are not compared."""
    ranges = {re.match(r"[\w-]+", one)[0]: one for one in needs()}
    # alone, so that nothing of what it needs is there when the rest is chosen
    install(session, torch, "--no-deps", os.environ.get("TORCH", ranges.pop("torch")))
    found = session.run_install("python", "-c", VERSION_OF_TORCH, silent=True, log=False)
    install(session, rest, f"torch=={str(found).strip()}", *ranges.values())
    session.install("--no-deps", "--editable", ".")
    session.run("uv", "pip", "freeze")
    # old packages speak of the new ones beneath them; our own warnings are errors where all is new
    quiet = ("-W", "default::DeprecationWarning") if rest == "oldest" else ()
    pytest = ("python", "-m", "pytest", "-p", "no:cacheprovider", *quiet)
    if session.posargs:
        session.run(*pytest, "--nbval-lax", *session.posargs)
        return
    session.run(*pytest, *UNITS)
    session.run(*pytest, "--nbval-lax", "chapters")


@nox.session(python=PYTHONS[-1], default=False)
def newest(session: nox.Session) -> None:
    """Build the book and run every test with the newest version of everything."""
    session.install("--editable", ".[dev]")
    session.run("python", "-m", "book.tools.publish")
    session.run("python", "-m", "pytest", "-p", "no:cacheprovider", "--nbval-lax", *session.posargs)
