"""Pack the whole book into one zip that works from the disk, with no network.

    python -m book.tools.offline

builds the book if anything has changed, and writes _build/transformer-block.zip: unpack it and
open index.html. The same book makes the same bytes.
"""

import re
import zipfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

from .common import BUILD, Problem, new_folder, run_command
from .publish import insist_on_every_page, publish

ZIP = BUILD / "transformer-block.zip"
INSIDE = "transformer-block"  # the one folder that the zip unpacks to
MOST_BYTES = 60_000_000
FIRST_DAY = (1980, 1, 1, 0, 0, 0)  # that a zip can say; the real one differs from run to run
SERVED_ONLY = {"sitemap.xml", ".buildinfo"}  # of no use on a disk
TOLD = {"canonical", "license"}  # links that say something and are not fetched


class _Links(HTMLParser):
    """Collects what a page fetches, and where its own links lead by a path from the root."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        fetched = [given.get("src", ""), given.get("poster", "")]
        fetched += [part.split()[0] for part in given.get("srcset", "").split(",") if part.strip()]
        if tag in {"link", "image", "use"} and given.get("rel") not in TOLD:
            fetched += [given.get("href", ""), given.get("xlink:href", "")]
        outside = re.compile(r"(?!data:)[a-z][a-z+.-]*:|/", re.IGNORECASE)
        self.found += [link for link in fetched if outside.match(link)]
        local = re.compile(r"/|file:|https?://(localhost|127\.|\[::1\])", re.IGNORECASE)
        if tag in {"a", "area"} and local.match(given.get("href", "")):
            self.found.append(given["href"])


def absolute_links(name: str, text: str) -> list[str]:
    """Return the links of a page or style sheet that would not work from a disk.

    >>> absolute_links("a.html", '<img src="b.png"><a href="https://example.org/">elsewhere</a>')
    []
    >>> absolute_links("a.html", '<img src="//example.org/b.png"><a href="/c.html">c</a>')
    ['//example.org/b.png', '/c.html']
    >>> absolute_links("a.css", "p { background: url(/b.png) }")
    ['/b.png']
    """
    if name.endswith(".css"):
        outside = r"""(?:url\(\s*|@import\s+)["']?((?:https?:|/)[^"')\s;]*)"""
        return re.findall(outside, text, flags=re.IGNORECASE)
    return _Links(text).found


def files(html: Path) -> Iterator[tuple[str, Path]]:
    """Yield the name and path of each file that goes into the zip, in the names' order."""
    for path in sorted(html.rglob("*"), key=lambda one: one.relative_to(html).as_posix()):
        if path.is_file() and path.name not in SERVED_ONLY:
            yield path.relative_to(html).as_posix(), path


def pack(html: Path, place: Path) -> int:
    """Write the zip of a built book; return its size in bytes.

    Raises:
        Problem: a page is missing, a link would not work from a disk, or the zip is too large.
    """
    insist_on_every_page(html)
    with new_folder(place.parent) as folder:
        made = folder / place.name
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
            for name, path in files(html):
                content = path.read_bytes()
                read = path.suffix in {".html", ".css"}
                if read and (wrong := absolute_links(name, content.decode("utf-8"))):
                    raise Problem(f"{name} has links that need a server: {', '.join(wrong)}.")
                entry = zipfile.ZipInfo(f"{INSIDE}/{name}", FIRST_DAY)
                entry.compress_type, entry.create_system = zipfile.ZIP_DEFLATED, 3
                entry.external_attr = 0o644 << 16
                packed.writestr(entry, content)
        size = made.stat().st_size
        if size >= MOST_BYTES:
            raise Problem(f"The zip has {size:,} bytes; it is to stay under {MOST_BYTES:,}.")
        made.replace(place)
    return size


def main() -> None:
    """Build the book if need be, pack it, and say where the zip is."""
    size = pack(publish(), ZIP)
    print(f"The book for the disk, {size / 1e6:.1f} MB: {ZIP}\nUnpack it and open index.html.")


if __name__ == "__main__":
    run_command(main)
