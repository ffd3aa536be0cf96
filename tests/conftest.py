"""What all tests share."""

import itertools
import os
from collections.abc import Callable, Iterator
from tempfile import TemporaryDirectory

import jaxtyping
import pytest
import torch
from hypothesis import settings
from torch.optim.optimizer import register_optimizer_step_post_hook

# The same examples in every run, and no deadline: a reader's machine may be slow.
settings.register_profile("book", deadline=None, derandomize=True)
settings.load_profile("book")

_EMPTY = TemporaryDirectory()


def pytest_configure() -> None:
    """Let the notebooks' kernels find no profile of the one who tests."""
    os.environ["IPYTHONDIR"] = _EMPTY.name
    os.environ.pop("PYTHONSTARTUP", None)


def pytest_collection_modifyitems(config: pytest.Config) -> None:
    """Keep coverage to the unit tests: nbval would trace the notebooks' kernels as well."""
    if getattr(config.option, "cov_source", None):
        config.option.cov_source = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say loudly, under all results, when no browser was there to open the pages."""
    skipped = terminalreporter.stats.get("skipped", [])
    for said in {str(r.longrepr[2]) for r in skipped if "NO CHROMIUM" in str(r.longrepr)}:
        terminalreporter.section("THE BOOK'S PAGES WERE NOT TESTED", red=True)
        terminalreporter.line(said)


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(20)


@pytest.fixture(autouse=True)
def shapes_are_checked_until_a_loop_repeats_them() -> Iterator[None]:
    """Switch the shape checker off after a test's third step of any optimiser.

    The steps after it bring the same shapes again, and the checker would take most of the time.
    """
    jaxtyping.config.update("jaxtyping_disable", False)
    steps = itertools.count(1)

    def enough(*_: object) -> None:
        if next(steps) == 3:
            jaxtyping.config.update("jaxtyping_disable", True)

    hook = register_optimizer_step_post_hook(enough)
    yield
    hook.remove()
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def double() -> Iterator[None]:
    """Let new tensors and parts hold float64, so that equal means equal to rounding."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def as_a_reader() -> Iterator[None]:
    """Switch the shape checker of the tests off: a reader meets our own errors, not its."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def caught() -> Callable[..., None]:
    """Return a function that fails unless the proof rejects every planted mistake."""

    def check(proof: Callable[..., None], *mistakes: object) -> None:
        for mistake in mistakes:
            with pytest.raises(AssertionError):
                proof(mistake)

    return check
