"""A Chromium to look at the pages with, and to print them."""

import os
import shutil
from pathlib import Path

from playwright.sync_api import Browser, Playwright

ARGUMENTS = [
    "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
PLACES = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    r"C:\Program Files\Google\Chrome\Application\chrome.exe",
    r"C:\Program Files (x86)\Microsoft\Edge\Application\msedge.exe",
)
HOW_TO_GET_ONE = (
    "Get one: `sudo apt install chromium` (Debian, Ubuntu), Google Chrome, or "
    "`.venv/bin/playwright install chromium`; or name yours: CHROMIUM=/path/to/chrome"
)


def find_chromium(playwright: Playwright) -> str | None:
    """Return a Chromium's path: the one named, the system's, or Playwright's own."""
    named = os.environ.get("CHROMIUM")
    if named:
        return shutil.which(named)
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        if found := shutil.which(name):
            return found
    for place in (*PLACES, playwright.chromium.executable_path):
        if Path(place).is_file():
            return place
    return None


def launch(playwright: Playwright) -> Browser | None:
    """Start a Chromium without a window, cut off from the network; None where there is none."""
    path = find_chromium(playwright)
    if path is None:
        return None
    root = hasattr(os, "geteuid") and os.geteuid() == 0  # Chromium's sandbox refuses root
    arguments = [*ARGUMENTS, *(["--no-sandbox"] if root else [])]
    return playwright.chromium.launch(executable_path=path, args=arguments)
