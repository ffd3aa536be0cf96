"""What a page is asked on behalf of readers who hear it, enlarge it, or use keys only."""

from itertools import pairwise
from typing import Any

from page_checks import ask, overflow
from playwright.sync_api import Page

MOST_TABS = 1000


def too_large(page: Page) -> list[str]:
    """What sticks out at letters of twice the size, and at 200 % zoom."""
    page.set_viewport_size({"width": 1280, "height": 800})
    page.add_style_tag(content="html { font-size: 200% !important; }")
    faults = overflow(page, 1280)
    page.add_style_tag(content="html { font-size: 100% !important; }")
    return faults + overflow(page, 640)


def moving(page: Page) -> list[str]:
    """Motion in spite of the reader's wish for less of it."""
    return [f"moves: {what}" for what in ask(page, "moving")]


def unseen_controls(page: Page) -> list[str]:
    """Controls without an edge or a word where the system sets the colours."""
    return list(ask(page, "edgeless"))


def lost_keys(page: Page) -> list[str]:
    """Tab does not reach something, in the page's order, or reaches it unseen.

    From the skip link to the last control, and out again at the end.
    """
    ask(page, "numberStops")
    faults: list[str] = []
    reached: list[int] = []
    for _ in range(MOST_TABS):
        page.keyboard.press("Tab")
        stop = ask(page, "stop")
        if stop is None:
            break
        reached.append(stop["number"])
        if not stop["ring"]:
            faults.append(f"no ring around {stop['what']}")
        if len(reached) == 1:
            if "skip" not in stop["what"].lower():
                faults.append(f"the first stop is no skip link: {stop['what']}")
            page.wait_for_timeout(300)  # it slides in
            if not ask(page, "stop")["shown"]:
                faults.append("the skip link stays out of sight")
        elif not stop["shown"]:
            faults.append(f"out of sight: {stop['what']}")
    else:
        return [*faults, f"Tab never leaves the page, after {MOST_TABS} stops"]
    if reached != sorted(reached):
        faults.append("the stops are not in the page's order")
    missed = [what for number, what in ask(page, "stops") if number not in reached]
    return faults + [f"no stop: {what}" for what in missed[:5]]


def ill_told(page: Page) -> list[str]:
    """What the accessibility tree of a page lacks: an order of headings, names, states."""
    wire = page.context.new_cdp_session(page)
    nodes = [n for n in wire.send("Accessibility.getFullAXTree")["nodes"] if not n["ignored"]]

    def of(*roles: str) -> list[dict[str, Any]]:
        return [node for node in nodes if node["role"]["value"] in roles]

    def said(node: dict[str, Any], key: str) -> Any:
        return next((p["value"]["value"] for p in node["properties"] if p["name"] == key), None)

    faults = []
    if len(of("main")) != 1:
        faults.append(f"{len(of('main'))} main parts")
    levels = [int(level) for level in page.evaluate(HEADINGS)]
    if levels[:1] != [1] or levels.count(1) != 1:
        faults.append(f"not one title, at the top: {levels}")
    if any(later > before + 1 for before, later in pairwise(levels)):
        faults.append(f"headings skip a level: {levels}")
    nameless = of("image", "slider", "button", "link", "DisclosureTriangle", "combobox", "heading")
    faults += [f"a {n['role']['value']} without a name" for n in nameless if not n["name"]["value"]]
    faults += [
        f"a fold that does not say whether it is open: {n['name']['value']}"
        for n in of("DisclosureTriangle")
        if said(n, "expanded") is None
    ]
    faults += page.evaluate(SLIDERS)
    if page.locator("main table").count() and not of("columnheader", "rowheader"):
        faults.append("tables without headers")
    return faults


HEADINGS = """[...document.querySelectorAll('main :is(h1, h2, h3, h4, h5, h6)')]
  .filter(h => h.checkVisibility()).map(h => h.localName[1])"""
SLIDERS = """[...document.querySelectorAll('[role=slider]:not([aria-valuetext])')]
  .map(e => `a slider that does not say what it shows: ${e.getAttribute('aria-label')}`)"""
