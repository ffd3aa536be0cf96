"""A browser, and the book's pages behind a local address."""

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

sys.path.insert(0, str(Path(__file__).parent))  # so that the tests share page_checks
import page_checks as checks

from book.tools import offline
from book.tools.browser import HOW_TO_GET_ONE, launch

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def book() -> Path:
    """The built book; builds it first if anything has changed."""
    done = subprocess.run(
        [sys.executable, "-m", "book.tools.publish"], cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode:
        pytest.fail(f"the book cannot be built:\n{done.stdout}\n{done.stderr}", pytrace=False)
    return ROOT / "_build" / "html"


@pytest.fixture(scope="session")
def address(book: Path) -> Iterator[str]:
    with checks.serving(book) as where:
        yield where


@pytest.fixture(scope="session")
def disk(book: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The book as a reader has it who unpacked the zip."""
    folder = tmp_path_factory.mktemp("disk")
    offline.pack(book, folder / "book.zip")
    with zipfile.ZipFile(folder / "book.zip") as packed:
        packed.extractall(folder)
    return folder / offline.INSIDE


@pytest.fixture(scope="session")
def axe(book: Path) -> str:
    """The source of axe-core, as npm installed it (making the book installs it)."""
    return (ROOT / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium for a module's tests. Where there is none: skip loudly, and fail in CI.

    It ends with its module: Playwright's event loop must not outlive the tests that need it.
    """
    with sync_playwright() as playwright:
        browser = launch(playwright)
        if browser is None:
            said = f"NO CHROMIUM WAS FOUND, SO THE BOOK'S PAGES WERE NOT TESTED. {HOW_TO_GET_ONE}"
            if os.environ.get("CI"):
                pytest.fail(said, pytrace=False)
            pytest.skip(said)
        yield browser
        browser.close()
