import itertools
import math
import re
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
import torch

from transformer_block import figures
from transformer_block.figures import picture as tools
from transformer_block.notebook import explore

mpl.use("Agg")
WORDS = ["park", "公园", "<b> & c"]
DRAWN = {
    "bars": lambda: figures.bars(
        WORDS, [0.5, 0.3, 0.2], alt="a & <b>", lit="公园", title="to <the> …"
    ),
    "heat_map": lambda: figures.heat_map(
        torch.tensor([[1.0, 0, -0.5], [0.25, 1, 0]]),
        ["它", "&"],
        WORDS,
        alt="a & <b>",
        row_title="query <",
        column_title="key",
    ),
    "lines": lambda: figures.lines(
        {"one <run>": [3.0, 2.0, 1.5], "two &": [[3, 2, 1], [4, 2, 0.5]]},
        alt="a & <b>",
        x_title="step <",
        y_title="loss &",
        marks={"best <": 0.25},
        points=True,
    ),
    "block": figures.block,
    "lit block": lambda: figures.block("mha", "stack"),
    "plot": lambda: plotted(),
}
every_drawing = pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)


def plotted():
    from matplotlib import pyplot

    fig, axes = pyplot.subplots(figsize=(4, 3))
    axes.plot([0, 1, 2], [0.123456, 2, 1], label="a < b & c")
    axes.legend()
    axes.set_title("1.2345")
    return figures.from_matplotlib(fig, "a & <b>")


def tree(shown):
    return ElementTree.fromstring(shown._repr_html_())


def texts(shown):
    return ["".join(node.itertext()) for node in tree(shown).iter() if node.tag.endswith("text")]


@every_drawing
def test_it_is_well_formed_and_says_what_it_shows(draw):
    picture = draw()
    root = tree(picture)
    assert root.tag.endswith("svg")
    assert (root.get("role"), root.get("aria-label")) == ("img", picture.alt)
    assert repr(picture) == picture.alt


@every_drawing
def test_it_is_the_same_each_time_and_names_no_foreign_place(draw):
    assert draw().svg == draw().svg
    names = ("http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink", "http://www.w3.org/TR/")
    assert not [u for u in re.findall(r"https?://[^\"]*", draw().svg) if not u.startswith(names)]


@every_drawing
def test_it_fits_a_phone_and_takes_the_page_s_ink(draw):
    root = tree(draw())
    assert "max-width:100%" in root.get("style")
    assert root.get("height") is None
    assert root.get("fill") == "currentColor"
    assert not re.search(r"#000\b|#000000|black|white|#fff", draw().svg)


@pytest.mark.parametrize("name", ["bars", "heat_map", "lines", "block"])
def test_coordinates_have_one_digit_after_the_point(name):
    numbers = re.findall(
        r"(?<![\w#])-?\d+\.(\d+)", re.sub(r">[^<]*<|opacity:[^;\"]*", "><", DRAWN[name]().svg)
    )
    assert all(len(digits) == 1 for digits in numbers)


def test_words_of_any_script_are_escaped():
    assert {"park", "公园", "<b> & c", "to <the> …"} <= set(texts(DRAWN["bars"]()))
    assert {"它", "&", "query <", "key", "公园"} <= set(texts(DRAWN["heat_map"]()))
    assert {"one <run>", "two &", "step <", "loss &", "best <"} <= set(texts(DRAWN["lines"]()))
    assert "a < b & c" in texts(DRAWN["plot"]())


# bars


def bar_lengths(shown):
    return [float(m) for m in re.findall(r'd="M[\d. ]+h([\d.]+)v20', shown.svg)]


def test_bars_are_as_long_as_their_values():
    one, two, three = bar_lengths(figures.bars(["a", "b", "c"], [0.8, 0.4, 0.2], alt="x"))
    assert one == pytest.approx(2 * two, abs=0.2)
    assert one == pytest.approx(4 * three, abs=0.2)
    half = bar_lengths(figures.bars(["a", "b", "c"], [0.8, 0.4, 0.2], alt="x", top=1.6))[0]
    assert half == pytest.approx(one / 2, abs=0.2)


def test_bars_write_values_as_told_and_take_tensors():
    shown = figures.bars(["a", "b"], torch.tensor([0.5, 0.25]), alt="x", form=".0%")
    assert texts(shown) == ["a", "50%", "b", "25%"]


def test_a_long_label_or_value_stays_inside():
    for labels in (["a"], ["the longest label of them all"], ["今天天气真好我想去公园"]):
        shown = figures.bars(labels, [12345.678], alt="x", form=",.3f")
        start = float(re.search(r'd="M([\d.]+)', shown.svg)[1])
        assert 0 < start < start + bar_lengths(shown)[0] < 400


@pytest.mark.parametrize(
    ("labels", "values", "more", "rule"),
    [
        ([], [], {}, "one value a label; 0 and 0"),
        (["a", "b"], [1.0], {}, "2 and 1"),
        (["a"], [-1.0], {}, "zero or more; the least is -1"),
        (["a"], [math.nan], {}, "cannot draw nan"),
        (["a"], [1.0], {"lit": "b"}, "'b' is not one of the labels"),
    ],
)
def test_bars_that_cannot_be_drawn(labels, values, more, rule):
    with pytest.raises(ValueError, match=rule):
        figures.bars(labels, values, alt="x", **more)


# heat maps


def area(shown):
    """Say how many cells each shade covers."""
    size = 40
    found = {}
    for path, shade in re.findall(
        r'<path d="([^"]*)" style="fill:var\(--tb-(?:1|2),\S*?;fill-opacity:([\d.]+)"', shown.svg
    ):
        found[shade] = sum(float(w) * float(h) for w, h in re.findall(r"h([\d.]+)v([\d.]+)", path))
    return {shade: round(total / size**2, 2) for shade, total in found.items()}


def test_a_heat_map_paints_each_cell_once():
    shown = figures.heat_map([[1.0, 1, 0], [0, 0.5, 0.5], [0, 0, 1]], alt="x", values=False)
    assert area(shown) == {"0.75": 3, "0.38": 2}


def test_signs_have_their_own_colours():
    shown = figures.heat_map(np.array([[1.0, -1.0]]), alt="x").svg
    assert "var(--tb-1" in shown
    assert "var(--tb-2" in shown


def test_numbers_stand_in_the_cells_where_they_fit():
    assert texts(figures.heat_map([[0.5, 0.25]], alt="x")) == ["0.50", "0.25"]
    assert texts(figures.heat_map(torch.rand(40, 40), alt="x")) == []
    assert texts(figures.heat_map([[0.5]], alt="x", values=False)) == []
    assert (
        texts(figures.heat_map(torch.full((9, 9), 2.0), alt="x", values=True, form=".0f"))
        == ["2"] * 81
    )


def test_a_large_map_stays_small_in_bytes():
    weights = torch.ones(100, 100).tril() / torch.arange(1, 101).unsqueeze(1)
    assert len(figures.heat_map(weights, alt="x").svg) < 10_000


@pytest.mark.parametrize(
    ("matrix", "more", "rule"),
    [
        ([], {}, "needs a matrix"),
        ([1.0, 2.0], {}, "needs a matrix"),
        ([[1.0], [1.0, 2.0]], {}, "all of one length"),
        ([[[1.0]]], {}, "needs a matrix"),
        ([[math.inf]], {}, "cannot draw inf"),
        ([[1.0, 2.0]], {"rows": ["a", "b"]}, "1 rows, but 2 labels"),
        ([[1.0, 2.0]], {"columns": ["a"]}, "2 columns, but 1 labels"),
    ],
)
def test_a_matrix_that_cannot_be_drawn(matrix, more, rule):
    with pytest.raises(ValueError, match=rule):
        figures.heat_map(matrix, alt="x", **more)


# lines


def curves(shown):
    """Return the points of each curve that is drawn; the legend's strokes are left out."""
    paths = re.findall(r'<path d="M([^"]*)" style="fill:none;[^"]*width:2"/>', shown.svg)
    points = [[tuple(map(float, p.split())) for p in re.split("[ML]", d)] for d in paths]
    return [those for those in points if those[-1][0] - those[0][0] != 22]


def curve(shown):
    return curves(shown)[0]


def test_a_straight_line_is_straight_and_goes_up():
    points = curve(figures.lines({"a": [0, 1, 2, 3]}, alt="x"))
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.pairwise(points)]
    assert slopes == pytest.approx([slopes[0]] * 3, abs=0.01)
    assert slopes[0] < 0, "y grows downwards in SVG"


def test_a_power_is_straight_on_logarithmic_scales():
    points = curve(figures.lines({"a": [1, 8, 64]}, [1, 2, 4], alt="x", x_log=True, y_log=True))
    assert points[1] == pytest.approx(
        ((points[0][0] + points[2][0]) / 2, (points[0][1] + points[2][1]) / 2), abs=0.11
    )


def test_several_runs_become_a_median_and_a_band():
    several = figures.lines({"a": [[1.0, 2], [2, 3], [9, 4]]}, alt="x")
    middle, low, high = (
        curve(figures.lines({"a": ends}, alt="x", y_holds=(1.0, 9.0)))
        for ends in ([2.0, 3.0], [1.0, 2.0], [9.0, 4.0])
    )
    assert curve(several) == middle
    path, down = re.search(
        r'<path id="\w+" d="M([^"]*)z"/>.*<use href="#\w+" x="0" y="(\d+)"', several.svg
    ).groups()
    corners = {
        (float(x), round(float(y) + float(down), 1)) for x, y in map(str.split, path.split("L"))
    }
    assert corners == {*low, *high}
    assert "fill-opacity" in several.svg


def test_a_gap_is_left_where_a_value_is_missing():
    gap = r'd="M[\d. ]+L[\d. ]+M[\d. ]+L[\d. ]+" style="fill:none;stroke:var'
    assert re.search(gap, figures.lines({"a": [1, 2, math.nan, 3, 4]}, alt="x").svg)
    runs = [[1, 2, math.nan, 3, 4], [2, 3, math.inf, 4, 5], [3, math.nan, math.nan, 9, 6]]
    assert re.search(gap, figures.lines({"a": runs}, alt="x").svg)


def test_an_axis_holds_the_heights_it_is_given():
    low, high = (
        curve(figures.lines({"a": [1.0, v]}, alt="x", y_log=True, y_holds=(1e-9, 1e3)))[0]
        for v in (2.0, 9.0)
    )
    assert low == high, "pictures with the same axis put 1.0 at the same height"
    other = curve(figures.lines({"a": [1.0, 2.0]}, alt="x", y_log=True))[0]
    assert other[1] != low[1]


def test_long_series_are_thinned():
    shown = figures.lines({"a": torch.linspace(3, 1, 6000)}, alt="x")
    assert len(shown.svg) < 5000
    assert 140 < len(curve(shown)) <= 152


def test_lines_differ_by_more_than_colour():
    shown = figures.lines({name: [1.0, 2.0] for name in "abcdef"}, alt="x").svg
    assert len(set(re.findall(r"stroke-dasharray:([\d.,]*)", shown))) == 5
    assert len(set(re.findall(r"stroke:(var[^;]*)", shown))) == 6


@pytest.mark.parametrize(
    ("values", "log", "ticks"),
    [
        ([0.0, 4.0], False, ["0", "1", "2", "3", "4"]),
        ([0.3, 9.7], False, ["0", "2", "4", "6", "8", "10"]),
        ([1.2, 1.2], False, ["1.1", "1.15", "1.2", "1.25", "1.3"]),
        ([1e-3, 1e3], True, ["0.001", "0.01", "0.1", "1", "10", "100", "1,000"]),
        ([1e-14, 1.0], True, ["1e-14", "1e-12", "1e-10", "1e-8", "1e-6", "1e-4", "0.01", "1"]),
        ([2.0, 50.0], True, ["2", "5", "10", "20", "50"]),
        ([0.0, 250_000.0], False, ["0", "50,000", "1e5", "1.5e5", "2e5", "2.5e5"]),
    ],
)
def test_ticks_are_round_numbers(values, log, ticks):
    shown = figures.lines({"a": values}, alt="x", y_log=log)
    assert texts(shown) == ["0", "1", *ticks]


def test_places_that_are_whole_get_whole_ticks():
    shown = figures.lines({"a": range(1, 12)}, range(1, 12), alt="x")
    assert texts(shown)[:5] == ["2", "4", "6", "8", "10"]


def test_names_are_said_as_they_are():
    """Neither as formulas, nor hidden, nor with a warning for glyphs that only browsers have."""
    names = ["_hidden", "$x$", "公园", "a_b^c"]
    shown = figures.lines({name: [1.0, 2.0] for name in names}, alt="x", y_title="$y$ in %")
    assert {*names, "$y$ in %"} < set(texts(shown))


@pytest.mark.parametrize("width", [240, 400])
def test_every_text_stays_inside_and_the_plot_keeps_its_height(width):
    shown = figures.lines(
        {"Post-Norm, the default": [1e-7, 1.0], "Pre-Norm": [1e-5, 1.0], "neither": [1e-6, 1.0]},
        [1, 100_000],
        alt="x",
        y_log=True,
        x_title="tokens",
        y_title="loss",
        marks={"best": 0.5},
        width=width,
    )
    root = tree(shown)
    _, _, wide, tall = map(float, root.get("viewBox").split())
    assert wide == width
    for node in (node for node in root.iter() if node.tag.endswith("text")):
        x, y, long = float(node.get("x")), float(node.get("y")), tools.text_width(node.text)
        side = (node.get("style") or "").partition("text-anchor:")[2]
        left = x - {"": 0, "middle": long / 2, "end": long}[side]
        assert -0.1 <= left <= left + long <= width + 0.1, node.text
        assert 9 < y < tall, node.text
    (_, low), (_, high) = curve(shown)
    assert low - high == pytest.approx(220, abs=0.1)


def test_a_reader_s_own_style_changes_nothing():
    plain = DRAWN["lines"]().svg
    with mpl.rc_context({"text.color": "red", "axes.grid": True, "font.size": 30}):
        assert DRAWN["lines"]().svg == plain
        assert mpl.rcParams["font.size"] == 30


def test_a_widget_of_twenty_stays_small():
    values = (torch.rand(20, 3, 24) * torch.logspace(0, -9, 24)).tolist()
    style = {"y_log": True, "y_holds": (1e-17, 1.0), "x_title": "block", "y_title": "gradient"}
    assert explore(
        lambda n: figures.lines({"one": values[n], "other": values[-n]}, alt="x", **style),
        n=range(20),
    )


@pytest.mark.parametrize(
    ("series", "more", "rule"),
    [
        ({}, {}, "as many values as places"),
        ({"a": []}, {}, "as many values"),
        ({"a": [1.0], "b": [1.0, 2.0]}, {}, "as many values"),
        ({"a": [1.0, 2.0]}, {"x": [1]}, r"\[2\] and 1"),
        ({"a": [math.nan]}, {}, "no finite value"),
        ({"a": [0.0, 1.0]}, {"y_log": True}, "y is logarithmic and needs values above 0; got 0"),
        ({"a": [1.0, 2.0]}, {"x_log": True}, "x is logarithmic"),
    ],
)
def test_lines_that_cannot_be_drawn(series, more, rule):
    with pytest.raises(ValueError, match=rule):
        figures.lines(series, alt="x", **more)


# the live curve


class Screen:
    """Records what a notebook would show."""

    def __init__(self):
        self.shown = []

    def display(self, picture, *, display_id):
        assert display_id
        self.shown.append(picture)
        return self

    def update(self, picture):
        self.shown.append(picture)


@pytest.fixture
def screen(monkeypatch):
    screen = Screen()
    monkeypatch.setattr("IPython.display.display", screen.display)
    return screen


def test_a_live_curve_leaves_the_whole_curve(screen, capsys):
    with figures.live_curve(alt="loss falls", marks={"best": 1.0}, every=0.0) as curve_:
        for step in range(4):
            curve_.add(step, train=4.0 - step)
        curve_.add(4, train=1.5, held_out=2.0)
    assert len(screen.shown) == 6
    assert repr(screen.shown[-1]) == "loss falls"
    assert {"train", "held_out", "best"} <= set(texts(screen.shown[-1]))
    assert capsys.readouterr() == ("", "")


def test_a_live_curve_draws_seldom_and_always_at_the_end(screen):
    with figures.live_curve(alt="x", every=1000.0) as curve_:
        for step in range(50):
            curve_.add(step, loss=step)
    assert len(screen.shown) == 2


def test_a_live_curve_that_breaks_off_shows_how_far_it_came(screen):
    def interrupted():
        with figures.live_curve(alt="x", every=1000.0) as curve_:
            curve_.add(0, loss=1.0)
            curve_.add(1, loss=0.5)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(curve(screen.shown[-1])) == 2
    with figures.live_curve(alt="x"):
        pass
    assert len(screen.shown) == 2, "nothing to show is no error"


# the block


def test_the_block_lights_what_it_is_asked_to():
    root = tree(figures.block("mha"))
    lit = {node.get("data-part") for node in root.iter() if node.get("data-lit") is not None}
    assert lit == {"mha", "heads", "concat", "W_O"}
    assert "tb-some" in root.get("class")
    assert "multi-head attention" in figures.block("mha").alt


def test_each_part_of_the_block_can_be_lit():
    module_parts = {node.get("data-part") for node in tree(figures.block()).iter()} - {None}
    for part in module_parts:
        assert f'data-part="{part}" data-lit' in figures.block(part).svg
    assert "data-lit=" not in figures.block().svg
    both = figures.block("residual").svg
    assert both.count("data-lit=") == 2


def test_an_unknown_part_is_refused():
    with pytest.raises(ValueError, match="no part 'MHA'; it has embedding, norm_mha, mha"):
        figures.block("MHA")


# tables, galleries, pictures


def test_a_table_reads_as_html_and_as_text():
    shown = figures.table(
        [["a <b>", 1234, 0.5], ["c", 7, 0.25]], ["part", "n", "share"], form=".2f"
    )
    assert repr(shown) == "part       n  share\na <b>  1,234   0.50\nc          7   0.25"
    cells = ["".join(node.itertext()) for node in tree(shown).iter("td")]
    assert cells == ["a <b>", "1,234", "0.50", "c", "7", "0.25"]
    assert [node.get("scope") for node in tree(shown).iter("th")] == ["col"] * 3
    sides = [
        re.search("text-align:(.*?);", node.get("style"))[1] for node in tree(shown).iter("th")
    ]
    assert sides == ["left", "right", "right"]


def test_a_ragged_table_is_refused():
    with pytest.raises(ValueError, match=r"needs 2 cells, as the header has; got \[2, 1\]"):
        figures.table([[1, 2], [3]], ["a", "b"])
    with pytest.raises(ValueError, match="needs 1 cells"):
        figures.table([], ["a"])


def test_a_gallery_keeps_pictures_and_captions_together():
    one, two = (figures.bars(["a"], [v], alt=f"bar of {v}") for v in (1.0, 2.0))
    shown = figures.side_by_side(one, two, captions=["first <", ""])
    assert repr(shown) == "first <: bar of 1.0\nbar of 2.0"
    assert [n.get("aria-label") for n in tree(shown).iter() if n.tag.endswith("svg")] == [
        "bar of 1.0",
        "bar of 2.0",
    ]
    with pytest.raises(ValueError, match="2 pictures, 1 captions"):
        figures.side_by_side(one, two, captions=["a"])


@pytest.mark.parametrize(
    ("svg", "alt", "rule"), [("<p>", "x", "one <svg>"), ("<svg/>", " ", "alt text")]
)
def test_a_picture_is_a_drawing_with_words(svg, alt, rule):
    with pytest.raises(ValueError, match=rule):
        figures.Picture(svg, alt)


def test_a_plot_is_closed_and_its_text_untouched():
    from matplotlib import pyplot

    shown = DRAWN["plot"]()
    assert pyplot.get_fignums() == []
    assert "1.2345" in texts(shown)
    assert "var(--tb-1" in shown.svg
    assert len(shown.svg) < 15_000


def test_chinese_is_wider_than_its_count_of_letters():
    assert tools.text_width("公园") > tools.text_width("ab")
