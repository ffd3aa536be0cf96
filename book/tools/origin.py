"""Where this checkout is published from: its page on GitHub, its commit, the site it makes."""

import os
import re
import shutil
import subprocess

from .common import ROOT

HOST = "https://github.com"
BRANCH = "published"  # where the deployment puts the notebooks that Colab opens
COLAB = "https://colab.research.google.com"


def repository_address() -> str | None:
    """Return the GitHub address of this repository, or None if it has none."""
    name = os.environ.get("GITHUB_REPOSITORY")
    if name:
        return github_address(f"{os.environ.get('GITHUB_SERVER_URL', HOST)}/{name}")
    return github_address(_git("remote", "get-url", "origin"))


def commit() -> str | None:
    """Return the commit that is published: the one CI works on, or the one checked out."""
    return os.environ.get("GITHUB_SHA") or _git("rev-parse", "HEAD") or None


def site_address() -> str | None:
    """Return the address that the book will have, with no slash at its end; None if not known.

    The deployment knows it (BOOK_ADDRESS): a site may have a domain of its own.
    """
    return os.environ.get("BOOK_ADDRESS", "").rstrip("/") or None


def colab_folder(repository: str) -> str:
    """Return the address under which Colab opens a repository's published notebooks.

    >>> colab_folder("https://github.com/someone/book") + "chapters/01-heads.ipynb"
    'https://colab.research.google.com/github/someone/book/blob/published/chapters/01-heads.ipynb'
    """
    return f"{COLAB}/github{repository.removeprefix(HOST)}/blob/{BRANCH}/"


def github_address(remote: str) -> str | None:
    """Turn a git remote into a GitHub page's address; None for any other host.

    >>> github_address("git@github.com:someone/book.git")
    'https://github.com/someone/book'
    >>> github_address("https://elsewhere.example/someone/book.git")
    """
    found = re.fullmatch(
        r"(?:https://(?:[^/@]+@)?|git@|ssh://git@)github\.com[/:]([\w.-]+/[\w.-]+?)(?:\.git)?/?",
        remote,
    )
    return f"{HOST}/{found[1]}" if found else None


def _git(*arguments: str) -> str:
    """Return what git answers; "" where there is no git, no checkout or no answer."""
    git = shutil.which("git")
    if git is None:
        return ""
    done = subprocess.run([git, *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""
