"""Set up .venv with the pinned packages, unless it is as it should be.

Every target of the Makefile begins with it; where there is no make, `py -m book.tools.set_up`.
It uses Python's own library only: nothing else may be installed yet.
"""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from .common import ROOT, Problem, digest, run_command

VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
STAMP = VENV / ".set-up"
# Settings that would send the packages somewhere else, or let others pass for installed.
ASTRAY = {"PIP_PREFIX", "PIP_ROOT", "PIP_TARGET", "PIP_USER", "PYTHONHOME", "PYTHONPATH"}
# What pip says → what it means. The network first: without it, pip also finds no version.
CAUSES = {
    r"NewConnectionError|NameResolution|Network is unreachable|[Tt]imed? ?out|ConnectionError"
    r"|Connection refused|ProxyError|SSLError|Max retries": "The network is the reason. "
    "Connect and run the same command again.",
    r"No space left on device": "The disk is full. Make room and run the same command again.",
    r"Permission denied|Read-only file system": "A place named above cannot be written to.",
    r"No matching distribution|requires a different Python|Failed building wheel": "A pinned "
    f"version does not exist for Python {sys.version_info.major}.{sys.version_info.minor} on this "
    "system. Name another Python: make PYTHON=python3.12 book",
}


def stamp() -> bytes:
    """Return what a finished set-up leaves: its folder, and what it was made from."""
    inputs = digest([ROOT / "pyproject.toml", ROOT / "constraints.txt"])
    return os.fsencode(f"{ROOT}\n{inputs}\n")


def set_up(pip_flags: Sequence[str] = ()) -> None:
    """Bring .venv up to date."""
    left = STAMP.read_bytes() if STAMP.is_file() else b""
    usable = _is_usable()
    if usable and left == stamp():
        return
    if not os.access(ROOT, os.W_OK):
        raise Problem(f"{ROOT} cannot be written to: it is read-only, or belongs to another user.")
    moved = left.strip() != b"" and not left.startswith(os.fsencode(f"{ROOT}\n"))
    if moved:
        print("This folder was copied or moved since: setting it up afresh.", flush=True)
    if moved or not usable:
        _make_environment()
        STAMP.write_bytes(os.fsencode(f"{ROOT}\nunfinished\n"))
    _install(pip_flags)
    _name_sources_relatively()
    STAMP.write_bytes(stamp())


def _is_usable() -> bool:
    """Tell whether .venv holds a Python that runs, is new enough and has pip."""
    question = "import sys, pip; sys.exit(sys.version_info < (3, 11))"
    try:
        return subprocess.run([PYTHON, "-c", question], capture_output=True).returncode == 0
    except OSError:
        return False


def _make_environment() -> None:
    """Make .venv anew with the Python that runs this, or with the one behind it."""
    if find_spec("venv") is None or find_spec("ensurepip") is None:
        raise Problem(
            f"{sys.executable} has no venv, which makes virtual environments.\n"
            "On Debian and Ubuntu: sudo apt install python3-venv"
        )
    print(f"Making {VENV.name} ...", flush=True)
    python = getattr(sys, "_base_executable", sys.executable)
    done = subprocess.run(
        [python, "-m", "venv", "--clear", VENV], capture_output=True, text=True, errors="replace"
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-2000:]
        raise Problem(f"The virtual environment could not be made. Python said:\n\n{said}")


def _install(pip_flags: Sequence[str]) -> None:
    """Install the pinned packages; where pip fails, say why."""
    print(f"Installing the pinned packages into {VENV.name} (minutes, the first time) ...")
    sys.stdout.flush()
    command = [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", *pip_flags]
    environment = {name: value for name, value in os.environ.items() if name not in ASTRAY}
    # pip's own configuration may ask for --user, too: the environment has the last word
    with subprocess.Popen(
        [*command, "-c", "constraints.txt", "-e", ".[dev]"],
        cwd=ROOT,
        env={**environment, "PIP_USER": "0"},
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as pip:
        said = []
        for line in pip.stderr or ():
            print(line, end="", file=sys.stderr, flush=True)
            said.append(line)
    if pip.returncode:
        raise Problem(f"The packages could not be installed. {why(''.join(said))}")


def why(said: str) -> str:
    """Return the cause that pip's words name.

    >>> why("ERROR: Could not install packages: [Errno 28] No space left on device")
    'The disk is full. Make room and run the same command again.'
    """
    for words, cause in CAUSES.items():
        if re.search(words, said):
            return cause
    return "pip's words above say why."


def _name_sources_relatively() -> None:
    """Name the package's sources relative to .venv.

    pip writes the whole path, which Python reads in the locale's encoding: in a folder with
    non-ASCII letters and LC_ALL=C it would no longer start. And a copy would run the old sources.
    """
    for pattern in ("lib/python*/site-packages", "Lib/site-packages"):
        for packages in VENV.glob(pattern):
            for file in packages.glob("*transformer_block*.pth"):
                file.write_text(os.path.relpath(ROOT / "src", packages), encoding="ascii")


if __name__ == "__main__":
    run_command(lambda: set_up(sys.argv[1:]))
