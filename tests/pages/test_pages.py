"""Every page of the built book, in a real browser."""

from dataclasses import dataclass, field
from pathlib import Path

import page_checks as checks
import pytest
from playwright.sync_api import Browser

from book.tools.publish import pages

PAGES = [*pages(), "search", "genindex"]
every_page = pytest.mark.parametrize("name", PAGES)


@dataclass
class Seen:
    """The faults found in the two visits that every page gets: a desk's screen and a phone's."""

    faults: dict[str, list[str]] = field(default_factory=dict)


@pytest.fixture(scope="module")
def desk(browser: Browser, address: str, axe: str) -> dict[str, Seen]:
    """Visit each page once by day on a wide screen; look everything over in that one visit."""
    return _Visits(browser, address, axe, {"width": 1280, "height": 800}, "light")


@pytest.fixture(scope="module")
def phone(browser: Browser, address: str, axe: str) -> dict[str, Seen]:
    """Visit each page once at night on a phone."""
    return _Visits(browser, address, axe, {"width": 375, "height": 800}, "dark")


class _Visits(dict):
    def __init__(self, browser: Browser, address: str, axe: str, size: dict, mode: str) -> None:
        super().__init__()
        self.browser, self.address, self.axe, self.size, self.mode = (
            browser,
            address,
            axe,
            size,
            mode,
        )

    def __missing__(self, name: str) -> Seen:
        context = self.browser.new_context(viewport=self.size, color_scheme=self.mode)
        with context, checks.visiting(context, f"{self.address}/{name}.html") as visit:
            seen = Seen()
            seen.faults["requests"] = checks.bad_requests(visit, self.address)
            seen.faults["weight"] = checks.heavy(visit)
            seen.faults["shift"] = checks.shifting(visit)
            theme = visit.page.evaluate("document.documentElement.dataset.theme")
            seen.faults["mode"] = (
                [] if theme == self.mode else [f"{theme} page, {self.mode} system"]
            )
            seen.faults["chinese"] = checks.unmarked_chinese(visit.page)
            seen.faults["pictures"] = checks.nameless_pictures(visit.page)
            again = checks.BY_SIGHT if self.mode == "dark" else ()  # by day all were asked
            seen.faults["barriers"] = checks.barriers(visit.page, self.axe, *again)
            if self.mode == "dark":
                seen.faults["overflow"] = [
                    *checks.overflow(visit.page, 375), *checks.overflow(visit.page, 320)
                ]  # fmt: skip
            elif visit.page.locator(checks.WIDGET_SCRIPT).count():
                seen.faults["widgets"] = checks.dead_controls(visit.page)
            seen.faults["noise"] = checks.noise(visit)
        self[name] = seen
        return seen


def none(faults: list[str]) -> None:
    """Fail with the faults, one a line."""
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)


@every_page
def test_page_is_quiet(desk, phone, name: str) -> None:
    none(desk[name].faults["noise"] + phone[name].faults["noise"])


@every_page
def test_no_request_fails_or_leaves_the_book(desk, phone, name: str) -> None:
    none(desk[name].faults["requests"] + phone[name].faults["requests"])


@every_page
def test_first_view_is_light_and_still(desk, phone, name: str) -> None:
    none(
        [f for seen in (desk, phone) for key in ("weight", "shift") for f in seen[name].faults[key]]
    )


@every_page
def test_page_follows_the_system_by_day_and_night(desk, phone, name: str) -> None:
    none(desk[name].faults["mode"] + phone[name].faults["mode"])


@every_page
def test_nothing_bars_a_reader_in_light_and_dark(desk, phone, name: str) -> None:
    none(desk[name].faults["barriers"] + phone[name].faults["barriers"])


@every_page
def test_nothing_overflows_on_a_phone(phone, name: str) -> None:
    none(phone[name].faults["overflow"])


@every_page
def test_every_picture_is_described(desk, phone, name: str) -> None:
    none(desk[name].faults["pictures"] + phone[name].faults["pictures"])


@every_page
def test_chinese_says_that_it_is_chinese(desk, name: str) -> None:
    none(desk[name].faults["chinese"])


@every_page
def test_every_control_moves_its_picture_by_keyboard(desk, name: str) -> None:
    none(desk[name].faults.get("widgets", []))


@every_page
def test_links_lead_somewhere(book: Path, name: str) -> None:
    none(checks.dead_links(book / f"{name}.html", book))


@every_page
def test_file_is_not_too_big(book: Path, name: str) -> None:
    none(checks.big_file(book / f"{name}.html"))


def test_without_scripts_each_widget_shows_its_picture(browser: Browser, address: str) -> None:
    with browser.new_context(java_script_enabled=False) as context:
        page, faults = context.new_page(), []
        for name in pages():
            page.goto(f"{address}/{name}.html")
            faults += [f"{name}: {fault}" for fault in checks.blank_widgets(page)]
    none(faults)


@every_page
def test_page_is_alive_from_the_disk_and_prints(browser: Browser, book: Path, name: str) -> None:
    where = book.as_uri()
    with (
        browser.new_context(color_scheme="dark") as context,
        checks.visiting(context, f"{where}/{name}.html") as visit,
    ):
        none(
            checks.lifeless(visit.page)
            + checks.spoilt_print(visit.page)
            + checks.noise(visit)
            + checks.bad_requests(visit, where)
        )


WORDS = ["notation", "天气", "今天", "γ", "√", "W_O"]


@pytest.mark.parametrize("served", [True, False], ids=["served", "from the disk"])
def test_search_finds(browser: Browser, book: Path, address: str, *, served: bool) -> None:
    where = address if served else book.as_uri()
    with (
        browser.new_context() as context,
        checks.visiting(context, f"{where}/search.html") as visit,
    ):
        faults = [f for word in WORDS for f in checks.fruitless_search(visit.page, where, word)]
        none(faults + checks.noise(visit) + checks.bad_requests(visit, where))


@pytest.mark.parametrize("storage", ["blocked", "full"])
def test_search_and_theme_need_no_storage(browser: Browser, address: str, storage: str) -> None:
    with browser.new_context() as context:
        context.add_init_script(
            checks.BLOCK_STORAGE if storage == "blocked" else checks.FULL_STORAGE
        )
        none(checks.lost_without_storage(context, address, pages()[0]))


def test_root_leads_to_the_first_page(browser: Browser, address: str) -> None:
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{address}/")
        page.wait_for_url(f"**/{pages()[0]}.html")
