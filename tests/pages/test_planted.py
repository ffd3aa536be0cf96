"""Each check of a page can fail: a sound page passes all, a planted mistake is noticed."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import page_checks as checks
import pytest
from playwright.sync_api import Browser

SOUND = Path(__file__).parent / "planted" / "sound.html"
STILL = '<script type="application/vnd.jupyter.widget-view+json">{}</script>'

NEVER = "<script>window.givenUp = 1</script>"  # the widget code will not come: do not wait


class Mistake(NamedTuple):
    """What is replaced on the sound page, by what; the check that must notice, its word for it."""

    old: str
    new: str
    check: str
    word: str


def added(html: str, check: str, word: str) -> Mistake:
    """A mistake that is one more piece of page."""
    return Mistake("<h1", f"{html}<h1", check, word)


MISTAKES = {
    "console error": added("<script>console.error('oops')</script>", "noise", "oops"),
    "console warning": added("<script>console.warn('hm')</script>", "noise", "hm"),
    "exception": added("<script>undefined.x</script>", "noise", "undefined"),
    "foreign request": added('<img src="http://foreign.invalid/x.png">', "requests", "foreign"),
    "missing file": added('<img src="gone.png">', "requests", "404"),
    "heavy file": added('<script src="heavy.js"></script>', "weight", "first view"),
    "late layout": added(
        "<script>setTimeout(() => document.querySelector('h1').style.marginTop = '300px', 50)"
        "</script>",
        "shift",
        "layout shift",
    ),
    "no label": added('<input type="text">', "barriers", "label"),
    "grey on grey": added(
        '<p style="color:#999;background:#bbb">Grey words', "barriers", "contrast"
    ),
    "grey words of code": added(
        '<pre class="highlight"><pre><span class="k">def</span> <span class="c" '
        'style="color:#999;background:#bbb">grey</span></pre></pre>',
        "barriers",
        "contrast",
    ),
    "grey on grey, at the second look": added(
        '<p style="color:#999;background:#bbb">Grey words', "sight", "contrast"
    ),
    "wide block": added('<p style="width:900px">A</p>', "overflow", "ends at 9"),
    "cut-off block": added(
        '<div style="overflow:hidden"><p style="width:900px">A</p></div>', "overflow", "ends at 9"
    ),
    "code that leaves the paper": added(
        f"<pre style='white-space:pre'>{'x' * 200}</pre>", "paper", "<pre> loses its right end"
    ),
    "table that leaves the paper": added(
        f"<div style='overflow:auto'><table><td>{'x' * 200}</table></div>", "paper", "<table> loses"
    ),
    "pale on paper": added("<p style='color:#ced6dd'>Pale</p>", "paper", "is pale (1.47:1)"),
    "fold that asks for a click": added(
        '<details class="hide" open><summary>Hide code</summary>x</details>', "paper", "asks for"
    ),
    "word torn in a table": added(
        "<table style='width:40px;overflow-wrap:anywhere'><td>features<td>of<td>tokens</table>",
        "paper",
        "a table cell is torn: features",
    ),
    "formula torn in a table": added(
        "<table><td><span class='katex'><span class='mord' style='white-space:normal'>x</table>",
        "paper",
        "a table cell is torn: x",
    ),
    "nameless Chinese": added("<p>Today: 今天</p>", "chinese", "Chinese without lang"),
    "nameless drawing": Mistake('aria-label="A bar"', "", "pictures", "no description"),
    "path for a name": added(
        '<img alt="../_images/x.png" src="data:image/gif;base64,R0lGODlhAQABAAAAACw=">',
        "pictures",
        "no description",
    ),
    "dead slider": Mistake("at + 1", "at", "widgets", "3 of 3 moves leave the picture"),
    "one dead step": Mistake("at + 1", "at + (at < 2)", "widgets", "1 of 3 moves"),
    "nameless slider": Mistake('aria-label="h"', "", "widgets", "no name"),
    "no slider": Mistake('role="slider" tabindex', "data-x", "widgets", "nothing to move"),
    "slow slider": Mistake("const wait = 0;", "const wait = 90;", "widgets", " ms, not under"),
    "widget that never comes": added(f"{NEVER}{STILL}{STILL}", "widgets", "came alive"),
    "no still picture": added(f"{NEVER}{STILL}", "stills", "no still"),
    "empty still picture": added(
        f'{NEVER}<div class="widget-still"></div>{STILL}', "stills", "empty"
    ),
}


Plant = Callable[..., dict[str, list[str]]]


@pytest.fixture
def plant(tmp_path: Path, browser: Browser, axe: str) -> Plant:
    """Return a function that replaces one thing on the sound page and runs the named checks."""
    (tmp_path / "other.html").write_text((SOUND.parent / "other.html").read_text())
    noise = random.Random(1).randbytes(450_000).hex()  # does not compress below its limit
    (tmp_path / "heavy.js").write_text(f"//{noise}{noise[::-1]}")

    def faults(old: str, new: str, wanted: set[str]) -> dict[str, list[str]]:
        text = SOUND.read_text(encoding="utf-8")
        assert old in text
        (tmp_path / "page.html").write_text(text.replace(old, new, 1), encoding="utf-8")
        with (
            checks.serving(tmp_path) as where,
            browser.new_context(viewport={"width": 800, "height": 600}) as context,
            checks.visiting(context, f"{where}/page.html") as visit,
        ):
            known = {
                "requests": lambda: checks.bad_requests(visit, where),
                "weight": lambda: checks.heavy(visit),
                "shift": lambda: checks.shifting(visit),
                "noise": lambda: checks.noise(visit),
                "pictures": lambda: checks.nameless_pictures(visit.page),
                "barriers": lambda: checks.barriers(visit.page, axe),
                "sight": lambda: checks.barriers(visit.page, axe, *checks.BY_SIGHT),
                "stills": lambda: checks.blank_widgets(visit.page),
                "widgets": lambda: checks.dead_controls(visit.page),
                "paper": lambda: checks.spoilt_print(visit.page),
                "chinese": lambda: checks.unmarked_chinese(visit.page),
                "overflow": lambda: checks.overflow(visit.page, 375),
            }
            return {name: check() for name, check in known.items() if name in wanted}

    return faults


def test_a_sound_page_has_no_fault(plant: Plant) -> None:
    wanted = {check for _, _, check, _ in MISTAKES.values()}
    assert plant("<h1", "<h1", wanted) == {check: [] for check in wanted}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_noticed(plant: Plant, mistake: str) -> None:
    old, new, check, word = MISTAKES[mistake]
    assert word in "\n".join(plant(old, new, {check})[check])


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("other.html#place", "gone.html", "leads nowhere"),
        ("other.html#place", "../outside.html", "leads nowhere"),
        ("other.html#place", "other.html#gone", "no place"),
        ('href="#top"', 'href="#bottom"', "no place"),
    ],
)
def test_a_planted_dead_link_is_noticed(tmp_path: Path, old: str, new: str, word: str) -> None:
    for name in ("sound.html", "other.html"):
        (tmp_path / name).write_text((SOUND.parent / name).read_text())
    page = tmp_path / "sound.html"
    assert checks.dead_links(page, tmp_path) == []
    page.write_text(page.read_text().replace(old, new))
    checks.tags.cache_clear()
    assert word in "\n".join(checks.dead_links(page, tmp_path))


def test_a_page_over_its_size_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(f"<p>{'x' * checks.PAGE_BYTES}</p>")
    assert "bytes of HTML" in checks.big_file(page)[0]
    state = "x" * (checks.WIDGET_STATE_BYTES + 1)
    page.write_text(
        f'<script type="application/vnd.jupyter.widget-state+json">{state}</script>\n{STILL}'
    )
    checks.tags.cache_clear()
    assert "bytes of state" in checks.big_file(page)[0]


def test_a_fruitless_search_is_noticed(tmp_path: Path, browser: Browser) -> None:
    (tmp_path / "search.html").write_text('<!doctype html><ul id="search-results"></ul>')
    with checks.serving(tmp_path) as where, browser.new_context() as context:
        assert checks.fruitless_search(context.new_page(), where, "x", wait=300)


@pytest.mark.parametrize(
    ("link", "top", "word"),
    [
        ("page.html#place", 100, ""),
        ("page.html", 100, "leads to page.html, not to"),
        ("page.html#place", 10, "not at the top of the window"),
        ("page.html#place", 2000, "not at the top of the window"),
    ],
    ids=["sound", "to the page only", "under the header", "below the window"],
)
def test_a_search_that_leads_astray_is_noticed(
    tmp_path: Path, browser: Browser, link: str, top: int, word: str
) -> None:
    (tmp_path / "search.html").write_text(
        f'<!doctype html><ul id="search-results"><li><a href="{link}">x</a></ul>'
    )
    (tmp_path / "page.html").write_text(
        '<!doctype html><header style="position:fixed;top:0;height:50px;width:100%;z-index:1">'
        "</header>"
        f'<section id="place" style="position:fixed;top:{top}px"><h2>A heading</h2></section>'
    )
    with checks.serving(tmp_path) as where, browser.new_context() as context:
        found = checks.lost_after_search(context.new_page(), where, "x", "page.html#place")
    assert (word in "\n".join(found)) if word else not found


def test_a_page_lost_without_storage_is_noticed(tmp_path: Path, browser: Browser) -> None:
    button = "<button class='theme-switch-button' onclick='localStorage.a = 1'>Theme</button>"
    (tmp_path / "page.html").write_text(f"<!doctype html><link rel=icon href=data:,>{button}")
    (tmp_path / "search.html").write_text('<!doctype html><ul id="search-results"></ul>')
    with checks.serving(tmp_path) as where, browser.new_context() as context:
        context.add_init_script(checks.BLOCK_STORAGE)
        faults = "\n".join(checks.lost_without_storage(context, where, "page"))
    for word in ("theme button", "finds nothing", "storage is blocked"):
        assert word in faults
