"""A picture with sliders that moves without a kernel."""

import gzip
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

import ipywidgets
from ipywidgets.embed import dependency_state

Pictures = Mapping[tuple[int, ...], str]
_MOST_RAW, _MOST_COMPRESSED = 300_000, 30_000  # bytes of one widget's state on a page


class Explorer:
    """Sliders over a picture. `widget` is the box that holds both."""

    def __init__(self, widget: Any, text: str) -> None:
        self.widget, self._text = widget, text

    def __repr__(self) -> str:
        return self._text

    def _ipython_display_(self) -> None:
        from IPython.display import display

        # the plain text is ours: a widget's own repr differs from version to version
        view = {"version_major": 2, "version_minor": 0, "model_id": self.widget.model_id}
        data = {"text/plain": self._text, "application/vnd.jupyter.widget-view+json": view}
        display(data, raw=True)  # type: ignore[no-untyped-call]  # IPython is untyped


def explore(
    function: Callable[..., object],
    /,
    *,
    start: Mapping[str, object] | None = None,
    labels: Mapping[str, str] | None = None,
    **grid: Sequence[object],
) -> Explorer:
    """Draw a function over a whole grid once and put one slider per name above the picture.

    With ipywidgets 8 every picture travels with the page and the sliders need no kernel; with
    ipywidgets 7, as in Colab, moving a slider asks Python for the picture.

    Args:
        function: takes one value per name and returns a Picture, or a str of SVG or HTML. If it
            raises ValueError, the reader sees its sentence in place of a picture.
        start: the values to begin with; the first of each list if not given.
        labels: the slider's name where it differs from the argument's; plain text, no TeX.
        grid: name → its values, two or more.

    Raises:
        ValueError: a slider with fewer than two values, an unknown start, or too much to store.
        TypeError: the function returned something that is not a picture.
    """
    at = _places(grid, start or {}, labels or {})
    pictures = {
        where: _html(function, dict(zip(grid, values, strict=True)))
        for where, values in zip(
            itertools.product(*(range(len(values)) for values in grid.values())),
            itertools.product(*grid.values()),
            strict=True,
        )
    }
    sliders = _sliders(grid, at, labels or {})
    alive = hasattr(ipywidgets, "Stack")
    picture = _stacks(pictures, sliders, at) if alive else _called(pictures, sliders, at)
    box = ipywidgets.VBox([*sliders, picture])
    if alive:
        _weigh(box)
    shown = "; ".join(f"{name} = {', '.join(map(str, vs))}" for name, vs in grid.items())
    return Explorer(box, f"sliders over {shown}")


def _places(
    grid: Mapping[str, Sequence[object]], start: Mapping[str, object], labels: Mapping[str, str]
) -> tuple[int, ...]:
    if not grid:
        raise ValueError("explore needs something to vary, for example n_heads=[1, 2, 4]")
    for name, values in grid.items():
        if len(values) < 2 or len(set(map(str, values))) < len(values):
            raise ValueError(
                f"the slider {name} needs two different values or more; got {list(values)}"
            )
    if unknown := [name for name in (*start, *labels) if name not in grid]:
        raise ValueError(f"there is no slider {unknown[0]!r}; there are {', '.join(grid)}")
    for name, value in start.items():
        if value not in grid[name]:
            raise ValueError(f"{name} cannot start at {value!r}; it has {list(grid[name])}")
    return tuple(list(values).index(start.get(name, values[0])) for name, values in grid.items())


def _html(function: Callable[..., object], values: dict[str, object]) -> str:
    try:
        drawn = function(**values)
    except ValueError as impossible:  # in words, where the picture would stand
        return (
            '<p style="border:1px solid;border-left-width:4px;border-radius:4px;'
            'padding:.5em .8em;margin:.3em 0;max-width:30em;white-space:normal;line-height:1.4">'
            f"Not possible: {escape(str(impossible))}</p>"
        )
    if isinstance(drawn, str):
        return drawn
    if hasattr(drawn, "_repr_html_"):
        return str(drawn._repr_html_())
    raise TypeError(
        f"the function must return a Picture or a str of SVG; for {values} it returned "
        f"{type(drawn).__name__}; figures.from_matplotlib(fig, alt) turns a plot into a Picture"
    )


def _sliders(
    grid: Mapping[str, Sequence[object]], at: tuple[int, ...], labels: Mapping[str, str]
) -> list[Any]:
    names = [labels.get(name, name) for name in grid]
    wide = max(len(name) + sum(ord(c) > 0x2E80 for c in name) for name in names)
    return [
        ipywidgets.SelectionSlider(
            options=[(str(value), value) for value in values],
            index=index,
            description=name,
            # wide enough for the longest name, so that none is cut and the tracks line up
            style={"description_width": f"{wide + 2}ch"},
            layout=ipywidgets.Layout(width="100%", max_width="480px"),
        )
        for name, values, index in zip(names, grid.values(), at, strict=True)
    ]


def _stacks(pictures: Pictures, sliders: list[Any], at: tuple[int, ...]) -> Any:
    layout, style = ipywidgets.Layout(width="100%"), ipywidgets.HTML().style
    shown: dict[str, Any] = {}  # equal pictures are stored once ...
    stacks: dict[tuple[int, tuple[str, ...]], Any] = {}  # ... and equal stacks of them, too

    def build(where: tuple[int, ...]) -> Any:
        depth = len(where)
        if depth == len(sliders):
            html = pictures[where]
            if html not in shown:
                shown[html] = ipywidgets.HTML(html, layout=layout, style=style)
            return shown[html]
        children = tuple(build((*where, i)) for i in range(len(sliders[depth].options)))
        key = (depth, tuple(child.model_id for child in children))
        if key not in stacks:
            stack = ipywidgets.Stack(children, selected_index=at[depth], layout=layout)
            ipywidgets.jslink((sliders[depth], "index"), (stack, "selected_index"))
            stacks[key] = stack
        return stacks[key]

    return build(())


def _called(pictures: Pictures, sliders: list[Any], at: tuple[int, ...]) -> Any:
    picture = ipywidgets.HTML(pictures[at], layout=ipywidgets.Layout(width="100%"))

    def change(_: object) -> None:
        picture.value = pictures[tuple(slider.index for slider in sliders)]

    for slider in sliders:
        slider.observe(change, names="index")
    return picture


def _weigh(box: Any) -> None:
    state = json.dumps(dependency_state([box], drop_defaults=False), ensure_ascii=False).encode()
    raw, compressed = len(state), len(gzip.compress(state, 9))
    if raw > _MOST_RAW or compressed > _MOST_COMPRESSED:
        raise ValueError(
            f"this widget would store {raw:,} bytes ({compressed:,} compressed) in the page; at "
            f"most {_MOST_RAW:,} ({_MOST_COMPRESSED:,}) keep it quick; take fewer values a slider "
            "or a smaller drawing (figures.bars, heat_map or lines instead of a matplotlib plot)"
        )
