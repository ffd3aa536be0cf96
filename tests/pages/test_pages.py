"""Every page of the built book, in a real browser."""

from pathlib import Path
from typing import ClassVar

import page_checks as checks
import pytest
from playwright.sync_api import Browser

from book.tools.publish import pages

PAGES = [*pages(), "search", "genindex"]
every_page = pytest.mark.parametrize("name", PAGES)


class Visits(dict[str, dict[str, list[str]]]):
    """The faults of each page, by kind, found in one visit that looks everything over."""

    def __init__(self, browser: Browser, address: str, axe: str) -> None:
        super().__init__()
        self.browser, self.address, self.axe = browser, address, axe

    def __missing__(self, name: str) -> dict[str, list[str]]:
        with (
            self.browser.new_context(**self.how) as context,
            checks.visiting(context, f"{self.address}/{name}.html") as visit,
        ):
            page = visit.page
            theme, mode = page.evaluate("document.documentElement.dataset.theme"), self.how
            faults = self[name] = {
                "requests": checks.bad_requests(visit, self.address),
                "shift": checks.shifting(visit),
                "mode": [] if theme == mode["color_scheme"] else [f"{theme} page in {mode}"],
                "chinese": checks.unmarked_chinese(page),
                "pictures": checks.nameless_pictures(page),
                **self.look(visit),
            }
            faults["requests"] += checks.bad_requests(visit, self.address)
            faults["noise"] = checks.noise(visit)
        return faults


class ByDay(Visits):
    """On a wide screen, by day, from the disk: what a reader's hands and helpers meet."""

    how: ClassVar = {"viewport": {"width": 1280, "height": 800}, "color_scheme": "light"}

    def look(self, visit: checks.Visit) -> dict[str, list[str]]:
        return {
            "widgets": checks.dead_controls(visit.page),
            "barriers": checks.barriers(visit.page, self.axe),
        }


class ByNight(Visits):
    """On a phone, at night, from a server; then on paper."""

    how: ClassVar = {"viewport": {"width": 375, "height": 800}, "color_scheme": "dark"}

    def look(self, visit: checks.Visit) -> dict[str, list[str]]:
        page = visit.page
        faults = {
            "weight": checks.heavy(visit),
            "overflow": [*checks.overflow(page, 375), *checks.overflow(page, 320)],
            "print": checks.spoilt_print(page),
        }
        checks.settle(page, self.how["viewport"], self.how["color_scheme"])
        # by day all rules were asked
        return faults | {"barriers": checks.barriers(page, self.axe, *checks.BY_SIGHT)}


@pytest.fixture(scope="module")
def desk(browser: Browser, disk: Path, axe: str) -> Visits:
    return ByDay(browser, disk.as_uri(), axe)


@pytest.fixture(scope="module")
def phone(browser: Browser, address: str, axe: str) -> Visits:
    return ByNight(browser, address, axe)


def none(faults: list[str]) -> None:
    """Fail with the faults, one a line."""
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)


@every_page
def test_page_is_quiet(desk, phone, name: str) -> None:
    none(desk[name]["noise"] + phone[name]["noise"])


@every_page
def test_no_request_fails_or_leaves_the_book(desk, phone, name: str) -> None:
    none(desk[name]["requests"] + phone[name]["requests"])


@every_page
def test_first_view_is_light_and_still(desk, phone, name: str) -> None:
    none(phone[name]["weight"] + desk[name]["shift"] + phone[name]["shift"])


@every_page
def test_page_follows_the_system_by_day_and_night(desk, phone, name: str) -> None:
    none(desk[name]["mode"] + phone[name]["mode"])


@every_page
def test_nothing_bars_a_reader_in_light_and_dark(desk, phone, name: str) -> None:
    none(desk[name]["barriers"] + phone[name]["barriers"])


@every_page
def test_nothing_overflows_on_a_phone(phone, name: str) -> None:
    none(phone[name]["overflow"])


@every_page
def test_every_picture_is_described(desk, phone, name: str) -> None:
    none(desk[name]["pictures"] + phone[name]["pictures"])


@every_page
def test_chinese_says_that_it_is_chinese(desk, name: str) -> None:
    none(desk[name]["chinese"])


@every_page
def test_every_control_moves_its_picture_by_keyboard(desk, name: str) -> None:
    none(desk[name]["widgets"])


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
def test_page_prints(phone, name: str) -> None:
    none(phone[name]["print"])


WORDS = ["notation", "天气", "今天", "γ", "√", "W_O"]


@pytest.mark.parametrize("served", [True, False], ids=["served", "from the disk"])
def test_search_finds(browser: Browser, disk: Path, address: str, *, served: bool) -> None:
    where = address if served else disk.as_uri()
    with (
        browser.new_context() as context,
        checks.visiting(context, f"{where}/search.html") as visit,
    ):
        faults = [f for word in WORDS for f in checks.fruitless_search(visit.page, where, word)]
        none(faults + checks.noise(visit) + checks.bad_requests(visit, where))


LEADS = {  # words → where the first find leads
    "four times": "chapters/05-ffn.html#why-four-times",
    "temperature": "book/glossary.html#temperature",
    "the living model": "book/play.html",
    "residual": "chapters/03-residual.html",
    "γ": "chapters/04-layernorm.html#what-do-and-give-back",
    "weight tying": "chapters/08-lm-head.html#does-tying-help",
    "残差": "book/glossary.html#stream",
    "causal_mask": "book/api.html#transformer_block.attention.causal_mask",
}


@pytest.mark.parametrize("served", [True, False], ids=["served", "from the disk"])
def test_search_leads_to_the_heading(
    browser: Browser, disk: Path, address: str, *, served: bool
) -> None:
    where = address if served else disk.as_uri()
    with (
        browser.new_context(viewport={"width": 1280, "height": 800}) as context,
        checks.visiting(context, f"{where}/search.html") as visit,
    ):
        faults = [
            fault
            for words, place in list(LEADS.items())[: None if served else 2]
            for fault in checks.lost_after_search(visit.page, where, words, place)
        ]
        none(faults + checks.noise(visit))


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
