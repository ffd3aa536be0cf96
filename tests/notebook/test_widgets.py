import itertools
import sys

import ipywidgets
import pytest
from IPython.core.formatters import DisplayFormatter

from transformer_block import figures
from transformer_block.notebook import explore

SIZES = {"a": [1, 2, 3], "b": ["x", "y"], "c": [4, 5, 6, 7]}


def draw(a, b, c):
    return f"<svg><text>{a}{b}{c}</text></svg>"


def sliders(box):
    return [child for child in box.children if isinstance(child, ipywidgets.SelectionSlider)]


def shown(box):
    """Say what a page without a kernel shows: it follows the links from slider to stack."""
    for link in LINKS:
        (slider, _), (stack, _) = link.source, link.target
        stack.selected_index = slider.index
    picture = box.children[-1]
    while isinstance(picture, ipywidgets.Stack):
        picture = picture.children[picture.selected_index]
    return picture.value


LINKS = []


@pytest.fixture(autouse=True)
def keep_links(monkeypatch):
    LINKS.clear()
    jslink = ipywidgets.jslink

    def kept(source, target):
        LINKS.append(jslink(source, target))
        return LINKS[-1]

    monkeypatch.setattr(ipywidgets, "jslink", kept)


WITHOUT_STACK = "this ipywidgets has no Stack"
STACKED = pytest.mark.skipif(not hasattr(ipywidgets, "Stack"), reason=WITHOUT_STACK)


@pytest.fixture(params=[8, 7])
def version(request, monkeypatch):
    """Run with ipywidgets 8, and as with 7.7.1, where there is no Stack."""
    if request.param == 7:
        monkeypatch.delattr(ipywidgets, "Stack", raising=False)
    elif not hasattr(ipywidgets, "Stack"):
        pytest.skip(WITHOUT_STACK)
    return request.param


def look(box, version):
    return shown(box) if version == 8 else box.children[-1].value


def test_every_setting_shows_its_picture(version):
    explorer = explore(draw, **SIZES)
    a, b, c = sliders(explorer.widget)
    for i, j, k in itertools.product(range(3), range(2), range(4)):
        a.index, b.index, c.index = i, j, k
        said = f"{SIZES['a'][i]}{SIZES['b'][j]}{SIZES['c'][k]}"
        assert look(explorer.widget, version) == f"<svg><text>{said}</text></svg>"


def test_it_starts_where_it_is_told(version):
    explorer = explore(draw, start={"c": 6, "a": 2}, labels={"a": "width"}, **SIZES)
    assert look(explorer.widget, version) == "<svg><text>2x6</text></svg>"
    assert [s.description for s in sliders(explorer.widget)] == ["width", "b", "c"]
    assert {s.style.description_width for s in sliders(explorer.widget)} == {"7ch"}


def test_an_impossible_setting_says_why(version):
    def halves(n):
        if n % 2:
            raise ValueError(f"{n} is odd & <no> half")
        return figures.bars(["half"], [n / 2], alt="a half")

    explorer = explore(halves, n=[3, 4])
    assert "Not possible: 3 is odd &amp; &lt;no&gt; half" in look(explorer.widget, version)
    sliders(explorer.widget)[0].index = 1
    assert 'aria-label="a half"' in look(explorer.widget, version)


def test_other_errors_are_the_author_s():
    with pytest.raises(ZeroDivisionError):
        explore(lambda n: str(1 / n), n=[0, 1])


def test_the_function_is_called_once_for_each_setting(version):
    calls = []
    explorer = explore(lambda a, b: calls.append((a, b)) or "<svg/>", a=[1, 2], b=[1, 2, 3])
    sliders(explorer.widget)[0].index = 1
    assert sorted(calls) == sorted(set(calls))
    assert len(calls) == 6


@STACKED
def test_equal_pictures_are_stored_once():
    explorer = explore(lambda a, b: f"<svg>{a}</svg>", a=[1, 2, 3], b=[1, 2])
    outer = explorer.widget.children[-1]
    assert len({inner.children[0].model_id for inner in outer.children}) == 3
    assert outer.children[0].children[0] is outer.children[0].children[1]
    assert len({stack.layout.model_id for stack in outer.children}) == 1
    assert len({p.style.model_id for s in outer.children for p in s.children}) == 1


def test_its_text_is_short_and_its_output_names_no_object(monkeypatch):
    explorer = explore(draw, **SIZES)
    assert repr(explorer) == "sliders over a = 1, 2, 3; b = x, y; c = 4, 5, 6, 7"
    sent = []
    monkeypatch.setattr("IPython.display.display", lambda data, raw: sent.append((data, raw)))
    assert DisplayFormatter().format(explorer) == ({}, {}), "it shows itself"
    ((data, raw),) = sent
    assert raw
    assert data["text/plain"] == repr(explorer)
    assert data["application/vnd.jupyter.widget-view+json"]["model_id"] == explorer.widget.model_id


@pytest.mark.parametrize(
    ("grid", "rule"),
    [
        ({}, "something to vary"),
        ({"a": [1]}, "two different values"),
        ({"a": [1, 1]}, "two different values"),
        ({"a": [1, 2], "start": {"b": 1}}, "no slider 'b'; there are a"),
        ({"a": [1, 2], "labels": {"b": "B"}}, "no slider 'b'"),
        ({"a": [1, 2], "start": {"a": 3}}, "a cannot start at 3"),
    ],
)
def test_a_dead_or_unknown_slider_is_refused(grid, rule):
    with pytest.raises(ValueError, match=rule):
        explore(lambda a: "<svg/>", **grid)


def test_what_is_no_picture_is_refused():
    with pytest.raises(TypeError, match=r"it returned int; figures\.from_matplotlib"):
        explore(lambda a: a, a=[1, 2])


@STACKED
def test_too_much_state_is_refused():
    with pytest.raises(ValueError, match=r"would store \d\d\d,\d\d\d bytes .* fewer values"):
        explore(lambda a: f"<svg>{a}{'x' * 10_000}</svg>", a=list(range(32)))
    module = sys.modules["transformer_block.notebook.widgets"]
    assert module._MOST_RAW == 300_000
