"""Build the book from its stored notebooks into _build/html.

    python -m book.tools.publish            build, if anything has changed
    python -m book.tools.publish --serve    build, then show it at a local address

No notebook is executed. Every warning is an error, and so is a page of the table of contents that
is not in the result. A build that fails leaves the last good book where it is.
"""

import argparse
import functools
import http.server
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from .assets import make_assets
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
from .origin import colab_folder, repository_address, site_address

CONFIG = ROOT / "_config.yml"
TOC = ROOT / "book" / "_toc.yml"
HTML = BUILD / "html"
STAMP = BUILD / "html-made-from.txt"
TOOL_FILES = sorted(Path(__file__).parent.glob("*.py"))
PACKAGE = ROOT / "src" / "transformer_block"  # the drawing of the block and the API page read it
TOOLS = """
    Sphinx jupyter-book myst-nb myst-parser sphinx-book-theme pydata-sphinx-theme
    sphinxcontrib-katex sphinxcontrib-bibtex sphinx-external-toc sphinx-copybutton
"""


def pages() -> list[str]:
    """Return the names of the book's pages in reading order, as the table of contents has them."""
    toc = yaml.safe_load(TOC.read_text(encoding="utf-8"))

    def names(entry: dict[str, Any]) -> Iterator[str]:
        for key in ("root", "file"):
            if key in entry:
                yield entry[key]
        for key in ("parts", "chapters", "subtrees", "entries", "sections"):
            for inner in entry.get(key, []):
                yield from names(inner)

    return list(names(toc))


def source_of(page: str) -> Path:
    """Return the file a page is built from: the executed notebook, or the Markdown text."""
    notebook, text = ROOT / f"{page}.ipynb", ROOT / f"{page}.md"
    if notebook.is_file():
        return notebook
    if not text.is_file():
        raise Problem(f"book/_toc.yml names {page}, but there is no {page}.md.")
    if page.startswith("chapters/"):
        raise Problem(
            f"{page}.ipynb is missing: the chapter's text has not been executed.\n"
            "Run `make run` (python -m book.tools.execute), then this command again."
        )
    return text


def sources() -> list[Path]:
    """Return every file that the book is made from."""
    book = ROOT / "book"
    beside = [
        path
        for folder in (book / "static", book / "ext", ROOT / "chapters")
        for path in folder.rglob("*")
        if path.is_file()
        and path.suffix not in {".md", ".ipynb", ".pyc"}
        and not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
    ]
    beside += [*book.glob("*.bib"), *book.glob("claims.yml"), *book.glob("benchmarks.json")]
    beside += (ROOT / "web").glob("model.js")  # shown on the living model's page
    return [TOC, *beside, *map(source_of, pages())]


def configuration(repository: str | None, site: str | None = None) -> str:
    """Return _config.yml with what is known of the repository and the site.

    Without a repository the buttons that need one are left out; without a site's address,
    what needs that.
    """
    config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    config["repository"]["url"] = repository or ""
    config["sphinx"]["config"]["book_colab"] = colab_folder(repository) if repository else ""
    config["sphinx"]["config"]["html_baseurl"] = f"{site}/" if site else ""
    if repository is None:
        config["launch_buttons"] = {}
        config["html"]["use_repository_button"] = False
    return yaml.safe_dump(config, sort_keys=False, allow_unicode=True)


def fingerprint(config: str) -> str:
    """Fingerprint everything that decides how the book looks."""
    versions = [f"{name} {version(name)}" for name in TOOLS.split()]
    package = [path for path in PACKAGE.rglob("*") if path.suffix in {".py", ".svg"}]
    return digest([*sources(), *TOOL_FILES, *package], config, *versions)


def stage(folder: Path, config: str) -> None:
    """Copy the book's own files, and no others, to a folder with the repository's layout."""
    for path in sources():
        place = folder / path.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
    (folder / "_config.yml").write_text(config, encoding="utf-8")


def build(folder: Path) -> Path:
    """Build the staged book; return the folder of its pages."""
    source, output = folder / "source", folder / "output"
    command = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()"]
    command += ["build", str(source)]
    command += ["--toc", str(source / "book" / "_toc.yml"), "--path-output", str(output)]
    command += ["-W", "-n", "--keep-going", "-q"]
    environment = {**os.environ, "BOOK_NODE": node_and_npm()[0], "PYTHONHASHSEED": "0"}
    environment.pop("PYTHONWARNINGS", None)
    # A file, not a pipe: a child that outlives the build would hold a pipe open for ever.
    with (folder / "said.txt").open("w+", encoding="utf-8", errors="replace") as log:
        done = subprocess.run(
            command, check=False, cwd=ROOT, env=environment, stdout=log, stderr=log
        )
        log.seek(0)
        # the build's paths are shown as the repository's
        said = log.read().replace(f"{source}{os.sep}", "").strip()
    if done.returncode:
        print(said, file=sys.stderr)
        kept = f" The last good book is still in {HTML}." if HTML.is_dir() else ""
        raise Problem(f"The book was not built: every warning above counts as an error.{kept}")
    return output / "_build" / "html"


def insist_on_every_page(html: Path) -> None:
    """Refuse a book in which a page of the table of contents is missing."""
    missing = [
        page
        for page in [*pages(), "search", "genindex", "index"]
        if not (html / f"{page}.html").is_file()
    ]
    if missing:
        raise Problem(f"The book was built without these pages: {', '.join(missing)}.")


def publish() -> Path:
    """Bring _build/html up to date and return it."""
    make_assets()
    config = configuration(repository_address(), site_address())
    with alone("book"):
        inputs = fingerprint(config)
        if is_stamped(STAMP, inputs) and HTML.is_dir():
            insist_on_every_page(HTML)
            print("The book is up to date.")
            return HTML
        print(f"Building {len(pages())} pages ...", flush=True)
        with new_folder(BUILD) as folder:
            stage(folder / "source", config)
            html = build(folder)
            insist_on_every_page(html)
            STAMP.unlink(missing_ok=True)
            swap(html, HTML)
        STAMP.write_text(inputs)
    return HTML


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serve files without a line for each."""

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 (its own name)
        """Say nothing."""


class Server(http.server.ThreadingHTTPServer):
    """A local server that never shares a port with another program."""

    allow_reuse_address = os.name != "nt"
    daemon_threads = True


def serve(html: Path, port: int) -> None:
    """Show the book at a local address until Ctrl+C."""
    handler = functools.partial(Quiet, directory=str(html))
    try:
        server = Server(("127.0.0.1", port), handler)
    except OSError as error:
        raise Problem(
            f"Port {port} cannot be used ({error.strerror}): most often another program has it.\n"
            f"Take another one: --port {port + 1}, or --port 0 for any free one."
        ) from None
    except OverflowError:
        raise Problem(f"A port is a number from 0 to 65535; {port} is not.") from None
    print(f"The book is at http://127.0.0.1:{server.server_port}/ (Ctrl+C ends it).", flush=True)
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()


def main() -> None:
    """Read the command line, build, and say how to open the book."""
    parser = argparse.ArgumentParser(
        prog="python -m book.tools.publish",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--serve", action="store_true", help="show the book at a local address")
    parser.add_argument("--port", type=int, default=8000, help="of that address (8000; 0: any)")
    options = parser.parse_args()
    html = publish()
    if options.serve:
        serve(html, options.port)
        return
    python = os.path.relpath(sys.executable) if sys.prefix != sys.base_prefix else sys.executable
    print(
        f"\nOpen it in a browser:  {html / 'index.html'}\n"
        f"or at a local address: {python} -m book.tools.publish --serve"
    )


if __name__ == "__main__":
    run_command(main)
