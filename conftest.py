"""How all tests run: on this folder's package, the long files first, chapters in their time."""

import os
import re
from collections import defaultdict
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
KEPT = "book/seconds"  # where pytest's cache keeps what each file took the last time
START = 15  # seconds that a kernel may take to start, whatever the chapter says
PATIENCE = 4  # times what it says: another machine may be half as fast, and have company


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to test another folder's package (that of a copied environment, say)."""
    found = find_spec("transformer_block")
    if found is None or not Path(str(found.origin)).resolve().is_relative_to(ROOT.resolve()):
        where = "is not installed" if found is None else f"would come from {found.origin}"
        pytest.exit(f"transformer_block {where}. Set this folder up: make check", returncode=4)
    config.stash[SPENT] = defaultdict(float)
    os.environ["PYTHONIOENCODING"] = "utf-8"  # tests read so what they start, whatever the console
    share_cores(config)


def share_cores(config: pytest.Config) -> None:
    """Let each worker and its kernels compute on its share of the cores.

    Two kernels with two threads each on two cores wait for each other: small trainings took
    several times as long.
    """
    workers = config.getoption("numprocesses", 0) or 1
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))


SPENT = pytest.StashKey[dict[str, float]]()
LAST = pytest.StashKey[set[str]]()


def stated_seconds(text: str) -> float | None:
    """Return the time that a chapter says the machine takes; None if it says none.

    >>> stated_seconds("The machine: under 10 seconds once trained, under a minute before.")
    60.0
    """
    said = re.search(r"The machine: ([^.]*)\.", text)
    times = re.findall(r"(\d+|an?) (second|minute)s?\b", said[1]) if said else []
    unit = {"second": 1.0, "minute": 60.0}
    return max((float(n if n.isdigit() else 1) * unit[u] for n, u in times), default=None)


def limit(notebook: Path) -> float:
    """Return how long a chapter may run here and now: what it says, more where the machine is busy.

    A chapter that states no time has the minute that every chapter has.
    """
    text = notebook.with_suffix(".md")
    said = stated_seconds(text.read_text("utf-8")) if text.is_file() else None
    busy = os.getloadavg()[0] / (os.cpu_count() or 1) if hasattr(os, "getloadavg") else 2.0
    return START + PATIENCE * (60.0 if said is None else said) * max(1.0, busy)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let the longest files start first, so that no core waits for one at the end."""
    cache = getattr(config, "cache", None)
    kept = cache.get(KEPT, {}) if cache else {}
    files = {item.nodeid.split("::")[0]: item.path for item in items}
    took = {name: kept.get(name, expected(path)) for name, path in files.items()}
    order = sorted(files, key=lambda name: (-took[name], name))
    place = {name: at for at, name in enumerate(order)}
    items.sort(key=lambda item: place[item.nodeid.split("::")[0]])


LONG = {"test_pages.py": 500.0, "test_recorded.py": 400.0}  # seconds


def expected(file: Path) -> float:
    """Return how long a file takes, as far as one can know before the first run."""
    if file.suffix == ".ipynb":
        text = file.with_suffix(".md")
        return (stated_seconds(text.read_text("utf-8")) if text.is_file() else None) or 60.0
    return LONG.get(file.name, 1.0)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Note the last cell of each chapter: after it the chapter's time is known."""
    last = {item.path: item.nodeid for item in session.items if item.path.suffix == ".ipynb"}
    session.config.stash[LAST] = set(last.values())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail the last cell of a chapter that took longer than it says."""
    report = yield
    if item.path.suffix == ".ipynb" and call.when != "teardown":
        spent = item.config.stash[SPENT]
        spent[str(item.path)] += call.duration
        took, most = spent[str(item.path)], limit(item.path)
        if call.when == "call" and item.nodeid in item.config.stash[LAST] and took > most:
            report.outcome = "failed"
            report.longrepr = (
                f"{item.path.name} took {took:.0f} s; by its first lines it may take {most:.0f} s "
                "here and now. Make it quicker, or say the truth under “The machine”."
            )
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up what each file takes."""
    TOOK[report.nodeid.split("::")[0]] += report.duration


TOOK: dict[str, float] = defaultdict(float)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep the files' times for the next run's order."""
    config, cache = session.config, getattr(session.config, "cache", None)
    if cache and not hasattr(config, "workerinput") and not config.getoption("keyword"):
        kept = cache.get(KEPT, {})
        cache.set(KEPT, kept | {name: round(took, 1) for name, took in TOOK.items()})
