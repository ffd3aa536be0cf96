"""Pages for readers who enlarge them, hear them, use keys only, or set the colours themselves."""

from collections.abc import Callable

import access_checks as access
import page_checks as checks
import pytest
from playwright.sync_api import Browser, Page

CHAPTER = "chapters/01-heads"
PAGES = [CHAPTER, "book/play", "book/notation", "book/claims", "book/api"]
SETTINGS = {"reduced_motion": "reduce", "forced_colors": "active"}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_can_be_enlarged(browser: Browser, address: str, name: str) -> None:
    with (
        browser.new_context() as context,
        checks.visiting(context, f"{address}/{name}.html") as visit,
    ):
        assert access.too_large(visit.page) == []


@pytest.mark.parametrize("name", [CHAPTER, "book/play"])
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_a_page_stays_still_and_in_the_system_s_colours(
    browser: Browser, address: str, name: str, colours: str
) -> None:
    with (
        browser.new_context(**SETTINGS, color_scheme=colours) as context,
        checks.visiting(context, f"{address}/{name}.html") as visit,
    ):
        assert access.moving(visit.page) == []
        assert access.unseen_controls(visit.page) == []


@pytest.mark.parametrize("name", [CHAPTER, "book/play"])
def test_a_page_is_told_and_needs_keys_only(browser: Browser, address: str, name: str) -> None:
    with (
        browser.new_context(viewport={"width": 1280, "height": 800}) as context,
        checks.visiting(context, f"{address}/{name}.html") as visit,
    ):
        assert access.ill_told(visit.page) == []
        assert access.lost_keys(visit.page) == []


SOUND = """<!doctype html><html lang="en"><title>Sound</title>
<style>@media (prefers-reduced-motion: no-preference) { p { transition: color 1s } }
#knob { border: 1px solid; width: 9px; height: 9px }</style>
<a href="#top">Skip</a><main><article style="width: 100%"><h1 id="top">A page</h1><h2>A part</h2>
<p>Words <a href="#top">up</a>.</p><table><tr><th>a<tr><td>1</table>
<details><summary>A fold</summary>x</details><svg role="img" aria-label="A bar"></svg>
<div id="knob" role="slider" tabindex="0" aria-label="h" aria-valuenow="1" aria-valuetext="8"></div>
</article></main></html>"""
MISTAKES = [
    (access.too_large, "<p>", '<p style="width:90rem">', "ends at"),
    (access.moving, "(prefers-reduced-motion: no-preference)", "all", "moves: p"),
    (access.unseen_controls, "border: 1px solid", "background: red", "no edge"),
    (access.lost_keys, 'tabindex="0"', "", "no stop: h"),
    (access.lost_keys, "</style>", "a { outline: none }</style>", "no ring around Skip"),
    (
        access.lost_keys,
        '<a href="#top">up',
        '<a href="#top" style="position:fixed;top:-99px">up',
        "sight",
    ),
    (access.ill_told, "<h2>A part</h2>", "<h3>A part</h3>", "skip a level"),
    (access.ill_told, "<h2>A part</h2>", "<h1>A part</h1>", "not one title"),
    (access.ill_told, ' aria-label="A bar"', "", "a image without a name"),
    (access.ill_told, ' aria-valuetext="8"', "", "does not say what it shows"),
    (access.ill_told, "<th>a", "<td>a", "without headers"),
    (access.ill_told, "<main>", "<main></main><main>", "2 main parts"),
]


def look(browser: Browser, html: str, check: Callable[[Page], list[str]]) -> list[str]:
    with browser.new_context(**SETTINGS) as context:
        page = context.new_page()
        page.set_content(html)
        return check(page)


@pytest.mark.parametrize(
    "check",
    [access.too_large, access.moving, access.unseen_controls, access.lost_keys, access.ill_told],
)
def test_a_sound_page_has_no_fault(browser: Browser, check: Callable[[Page], list[str]]) -> None:
    assert look(browser, SOUND, check) == []


@pytest.mark.parametrize(("check", "old", "new", "word"), MISTAKES)
def test_a_planted_barrier_is_noticed(
    browser: Browser, check: Callable[[Page], list[str]], old: str, new: str, word: str
) -> None:
    assert old in SOUND
    found = look(browser, SOUND.replace(old, new, 1), check)
    assert found
    assert word in "\n".join(found)
