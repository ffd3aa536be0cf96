"""What a page of the book is asked. Each check returns the faults it found, in words."""

import gzip
import http.server
import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urlsplit

from playwright.sync_api import BrowserContext, ElementHandle, Page, ViewportSize
from playwright.sync_api import TimeoutError as TookTooLong

HERE = Path(__file__).parent
FIRST_VIEW_BYTES = 700_000
LAYOUT_SHIFT = 0.05
PAGE_BYTES = 1_500_000
WIDGET_STATE_BYTES = 300_000
ANSWER_MS = 50.0

# -------------------------------------------------------------------------------- the server


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serve a folder as a web host does: text travels compressed."""

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if path.is_dir():
            path /= "index.html"
        if not path.is_file():
            self.send_error(404)
            return
        body, kind = packed(path, path.stat().st_mtime_ns), self.guess_type(str(path))
        self.send_response(200)
        self.send_header("Content-Type", f"{kind}; charset=utf-8" if "text" in kind else kind)
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@cache
def packed(path: Path, _changed: int) -> bytes:
    return gzip.compress(path.read_bytes(), compresslevel=9)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that closes a connection early is no fault."""


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve the folder on a free local port; give its address."""
    server = Server(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


# --------------------------------------------------------------------------- visiting a page

WATCH_SHIFTS = """
window.shift = 0;
new PerformanceObserver(list => list.getEntries().forEach(e => {
  if (!e.hadRecentInput) window.shift += e.value;
})).observe({type: 'layout-shift', buffered: true});
"""


LEFT = "net::ERR_ABORTED"  # the page was left before this came: no fault of the page


@dataclass
class Visit:
    """One opening of a page, and what was seen meanwhile."""

    page: Page
    complaints: list[str] = field(default_factory=list)  # console errors and warnings, exceptions
    failed: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    bytes: int = 0


@contextmanager
def visiting(context: BrowserContext, address: str) -> Iterator[Visit]:
    """Open a page, wait until it has settled, widgets included, and give the visit."""
    page = context.new_page()
    page.set_default_timeout(20_000)
    visit = Visit(page)
    page.add_init_script(WATCH_SHIFTS)
    page.on("console", lambda m: m.type in {"error", "warning"} and visit.complaints.append(m.text))
    page.on("pageerror", lambda error: visit.complaints.append(str(error)))
    page.on("request", lambda request: visit.addresses.append(request.url))
    page.on("requestfailed", lambda r: r.failure != LEFT and visit.failed.append(r.url))
    page.on("response", lambda r: r.status >= 400 and visit.failed.append(f"{r.status} {r.url}"))
    wire = context.new_cdp_session(page)
    wire.send("Network.enable")

    def count(event: dict) -> None:
        visit.bytes += int(event["encodedDataLength"])

    wire.on("Network.loadingFinished", count)
    try:
        page.goto(address, wait_until="load")
        if page.locator(WIDGET_SCRIPT).count():
            page.wait_for_function("document.documentElement.dataset.widgets || window.givenUp")
        page.evaluate("() => document.fonts.ready.then(() => new Promise(requestAnimationFrame))")
        page.wait_for_timeout(100)
        yield visit
    finally:
        page.close()


WIDGET_SCRIPT = 'script[type="application/vnd.jupyter.widget-view+json"]'


# -------------------------------------------------------------------------------- the checks


def noise(visit: Visit) -> list[str]:
    """Console errors, console warnings and exceptions."""
    return [f"the console says: {text}" for text in visit.complaints]


def bad_requests(visit: Visit, origin: str) -> list[str]:
    """Requests that failed, and requests that leave the book's own origin."""
    foreign = [
        url for url in visit.addresses if not url.startswith((f"{origin}/", "data:", "blob:"))
    ]
    return [f"failed: {url}" for url in visit.failed] + [f"foreign: {url}" for url in foreign]


def heavy(visit: Visit) -> list[str]:
    """A first view that takes too many compressed bytes."""
    if visit.bytes <= FIRST_VIEW_BYTES:
        return []
    return [f"first view: {visit.bytes:,} bytes, more than {FIRST_VIEW_BYTES:,}"]


def shifting(visit: Visit) -> list[str]:
    """A layout that moves while the page loads."""
    shift = visit.page.evaluate("window.shift")
    return [] if shift <= LAYOUT_SHIFT else [f"layout shift {shift:.3f}, more than {LAYOUT_SHIFT}"]


def ask(page: Page, question: str, *given: ElementHandle | str) -> Any:
    """Ask the page one of the questions of page_checks.js."""
    if not page.evaluate("'ask' in window"):
        page.evaluate((HERE / "page_checks.js").read_text(encoding="utf-8"))
    return page.evaluate(f"given => window.ask.{question}(...given)", list(given))


# axe-core's rules whose verdict hangs on the colours or the width; all others on the document
BY_SIGHT = (
    "aria-hidden-focus",
    "color-contrast",
    "link-in-text-block",
    "scrollable-region-focusable",
    "target-size",
)


def barriers(page: Page, axe: str, *rules: str) -> list[str]:
    """Serious and critical findings of axe-core: of all its rules, or of those named."""
    page.evaluate(axe)
    ask(page, "thin")
    return list(ask(page, "barriers", *rules))


def overflow(page: Page, width: int) -> list[str]:
    """Things that stick out sideways, or are cut off, on a screen of this width."""
    page.set_viewport_size({"width": width, "height": 800})
    page.wait_for_timeout(100)
    return [f"at {width} px: {fault}" for fault in ask(page, "overflow")]


PAPER = 718  # px: A4 less two margins of 10 mm


def spoilt_print(page: Page) -> list[str]:
    """What loses its right end on A4 paper, or is too pale for it."""
    page.set_viewport_size({"width": PAPER, "height": 1000})
    page.emulate_media(media="print")
    page.wait_for_timeout(100)
    with suppress(TookTooLong):  # the page is told a moment later; else the check below says it
        page.wait_for_function("document.documentElement.dataset.theme !== 'dark'", timeout=3_000)
    faults = [f"on paper: {fault}" for fault in ask(page, "paper")]
    page.emulate_media(media="screen")
    return faults


def settle(page: Page, size: ViewportSize, theme: str) -> None:
    """Come back from paper, and wait for the theme's script, which follows a size late."""
    page.set_viewport_size(size)
    page.wait_for_function("wanted => document.documentElement.dataset.theme === wanted", arg=theme)
    page.wait_for_timeout(400)


def unmarked_chinese(page: Page) -> list[str]:
    """Chinese passages that a screen reader would spell in English."""
    return list(ask(page, "unmarked"))


def nameless_pictures(page: Page) -> list[str]:
    """Pictures of the text without a description, or with a file's path for one."""
    return list(ask(page, "nameless"))


def blank_widgets(page: Page) -> list[str]:
    """Widgets that show nothing before (or without) their code."""
    return list(ask(page, "blank"))


# ------------------------------------------------------------------------ widgets, by keyboard

AREA = ".widget-subarea"
MOST_STEPS = 12  # of a longer slider only the first steps and the end are tried


def dead_controls(page: Page) -> list[str]:
    """Controls that keys do not move, and moves that do not change the picture or come late."""
    faults: list[str] = []
    for number, area in enumerate(_areas(page, faults), start=1):
        ask(page, "watch", area)
        controls = area.query_selector_all("[role=slider], select")
        if not controls:
            faults.append(f"widget {number} has nothing to move")
            continue
        for control in controls:
            faults += [f"widget {number}, {fault}" for fault in _dead_steps(page, area, control)]
        answers = page.evaluate("window.ask.answers")
        if not answers:
            faults.append(f"widget {number}: no key changes the picture")
            continue
        # a busy machine is not a slow widget: ask twice more before believing it
        best = statistics.median(answers)
        for _ in range(2):
            if best >= ANSWER_MS:
                best = min(best, _answer_time(page, area, controls[0]))
        if best >= ANSWER_MS:
            faults.append(f"widget {number} answers in {best:.0f} ms, not under {ANSWER_MS:.0f}")
    return faults


def _areas(page: Page, faults: list[str]) -> list[ElementHandle]:
    """Return the living widgets; add a fault if there are fewer than there should be."""
    areas = page.locator(AREA).element_handles()
    wanted = page.locator(WIDGET_SCRIPT).count()
    if len(areas) < wanted:
        faults.append(f"{wanted} widgets are on the page, {len(areas)} came alive")
    return areas


def _dead_steps(page: Page, area: ElementHandle, control: ElementHandle) -> list[str]:
    """Walk one control from its first position to its last; every step has to show."""
    listed = control.evaluate("e => e.localName") == "select"
    name = control.get_attribute("aria-label") or control.evaluate("e => e.labels?.[0]?.innerText")
    steps = min(ask(page, "positions", control), MOST_STEPS) - 1
    control.focus()
    seen = [_press(page, area, "Home")]
    seen += [_press(page, area, "ArrowDown" if listed else "ArrowRight") for _ in range(steps)]
    if steps + 1 == MOST_STEPS:
        seen.append(_press(page, area, "End"))
    _press(page, area, "Home")
    same = sum(one == following for one, following in pairwise(seen))
    faults = [] if name else ["a nameless control: a screen reader has no name for it"]
    if same or steps < 1:
        faults.append(f"{name}: {same} of {len(seen) - 1} moves leave the picture as it was")
    return faults


def _press(page: Page, area: ElementHandle, key: str) -> str:
    page.keyboard.press(key)
    page.evaluate("() => new Promise(r => requestAnimationFrame(() => setTimeout(r)))")
    return str(ask(page, "picture", area))


def _answer_time(page: Page, area: ElementHandle, control: ElementHandle) -> float:
    page.evaluate("() => { window.ask.answers.length = 0; }")
    control.focus()
    for key in ("End", "Home") * 4:
        _press(page, area, key)
        page.wait_for_timeout(60)
    return float(statistics.median(page.evaluate("window.ask.answers") or [float("inf")]))


def fruitless_search(page: Page, address: str, words: str, wait: float = 8_000) -> list[str]:
    """A search page that finds nothing for words that stand in the book."""
    page.goto(f"{address}/search.html?q={words}", wait_until="load")
    try:
        page.wait_for_selector("#search-results li a", timeout=wait)
    except TookTooLong:
        return [f"searching for {words!r} finds nothing"]
    return []


def lost_after_search(page: Page, address: str, words: str, place: str) -> list[str]:
    """A first find that leads elsewhere than to its place, or a heading hidden on arrival."""
    if faults := fruitless_search(page, address, words):
        return faults
    first = page.locator("#search-results li a").first
    if (led := first.get_attribute("href")) != place:
        return [f"searching for {words!r} leads to {led}, not to {place}"]
    first.click()
    page.wait_for_load_state("load")
    page.evaluate("() => document.fonts.ready.then(() => new Promise(requestAnimationFrame))")
    fragment = urldefrag(place).fragment
    seen = not fragment or ask(page, "atTop", fragment)
    return [] if seen else [f"{place} is not at the top of the window on arrival"]


BLOCK_STORAGE = """
for (const name of ['localStorage', 'sessionStorage']) {
  delete window[name];
  Object.defineProperty(Window.prototype, name, { configurable: true, get() {
    throw new DOMException('storage is blocked', 'SecurityError');
  } });
}
"""
FULL_STORAGE = """
Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); };
"""


def lost_without_storage(context: BrowserContext, address: str, name: str) -> list[str]:
    """What a page no longer does where the browser gives it no storage: search, theme, quiet."""
    faults = []
    with visiting(context, f"{address}/{name}.html") as visit:
        theme = "document.documentElement.dataset.theme"
        before = visit.page.evaluate(theme)
        for _ in range(3):  # auto, light, dark
            visit.page.locator("button.theme-switch-button").first.click()
            if visit.page.evaluate(theme) != before:
                break
        else:
            faults.append("the theme button changes nothing")
        faults += fruitless_search(visit.page, address, "notation")
        faults += noise(visit)
    return faults


# ------------------------------------------------------------------- files, without a browser


class Tags(HTMLParser):
    """The ids, links and widget states of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.state_bytes = 0
        self._in_state = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        for key in ("id", "name"):
            if value := given.get(key):
                self.ids.add(value)
        for key in ("href", "src"):
            if (value := given.get(key)) is not None:
                self.links.append(value)
        self._in_state = tag == "script" and "widget-state" in (given.get("type") or "")

    def handle_data(self, data: str) -> None:
        if self._in_state:
            self.state_bytes += len(data.encode())

    def handle_endtag(self, tag: str) -> None:
        self._in_state = False


@cache
def tags(path: Path, _changed: int) -> Tags:
    return Tags(path.read_text(encoding="utf-8"))


def dead_links(path: Path, root: Path) -> list[str]:
    """Links and sources inside the book that lead nowhere, fragments included."""
    faults = []
    for link in dict.fromkeys(tags(path, path.stat().st_mtime_ns).links):
        bare, fragment = urldefrag(link)
        parts = urlsplit(bare)
        if parts.scheme or parts.netloc:
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        if target.is_dir():
            target /= "index.html"
        if not target.is_relative_to(root.resolve()) or not target.is_file():
            faults.append(f"leads nowhere: {link}")
        elif (
            fragment
            and target.suffix == ".html"
            and unquote(fragment) not in tags(target, target.stat().st_mtime_ns).ids
        ):
            faults.append(f"leads to no place on its page: {link}")
    return faults


def big_file(path: Path) -> list[str]:
    """A page or widget state over its size."""
    faults, size = [], path.stat().st_size
    if size > PAGE_BYTES:
        faults.append(f"{size:,} bytes of HTML, more than {PAGE_BYTES:,}")
    found = tags(path, path.stat().st_mtime_ns)
    widgets = sum(WIDGET_VIEW in line for line in path.read_text(encoding="utf-8").splitlines())
    if widgets and found.state_bytes > WIDGET_STATE_BYTES * widgets:
        faults.append(f"{found.state_bytes:,} bytes of state for {widgets} widgets")
    return faults


WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
