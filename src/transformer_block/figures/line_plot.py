"""Curves: a loss over steps, several seeds with their spread, a value against a size."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from transformer_block.figures.matplotlib_svg import PALETTE, page_svg
from transformer_block.figures.picture import Number, Picture, numbers, text_width

_PLOT, _MOST_POINTS = 220, 150
_DASHES = ["", (7, 4), (2, 3), (9, 3, 2, 3), (4, 2), (1, 3)]  # colour is not the only difference
_STYLE: Any = {
    "figure.dpi": 72,  # so that a point is a unit of the drawing
    "font.size": 13,
    "text.parse_math": False,
    "path.simplify": False,
    "lines.linewidth": 2,
    "lines.scale_dashes": False,
    "lines.solid_capstyle": "butt",
    "axes.linewidth": 1,
    "axes.axisbelow": True,
    "axes.autolimit_mode": "round_numbers",
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "xtick.major.width": 1,
    "xtick.major.size": 4,
    "ytick.left": False,
    "ytick.major.pad": 6,
    "grid.color": "black",
    "grid.alpha": 0.18,
    "grid.linewidth": 1,
}


def lines(
    series: Mapping[str, Any],
    x: Any = None,
    *,
    alt: str,
    x_title: str = "",
    y_title: str = "",
    marks: Mapping[str, Number] | None = None,
    x_log: bool = False,
    y_log: bool = False,
    points: bool = False,
    y_holds: Sequence[Number] = (),
    width: Number = 400,
) -> Picture:
    """Draw curves over one x axis; a series of several runs becomes their middle and their range.

    Args:
        series: name → values, or name → runs of values (then the median is drawn as the line, and
            the least and largest as a band around it). Values that are not finite leave a gap.
        x: the places of the values; 0, 1, 2, ... if not given.
        alt: what the picture shows, in a sentence.
        x_title: beneath the axis, with its unit.
        y_title: above the axis, with its unit.
        marks: name → height of a level line, such as the best possible loss.
        x_log: x on a logarithmic scale.
        y_log: y on a logarithmic scale.
        points: also draw a dot at each value.
        y_holds: heights that the axis must hold, so that several pictures can be compared.
        width: how wide the drawing becomes.

    Raises:
        ValueError: nothing to draw, lengths that differ, zero or less on a logarithmic scale.
    """
    runs = {name: _runs(values) for name, values in series.items()}
    long = {len(run) for many in runs.values() for run in many}
    at = numbers(x) if x is not None else [float(i) for i in range(max(long, default=0))]
    if long != {len(at)} or not at:
        raise ValueError(f"lines needs as many values as places x; {sorted(long)} and {len(at)}")
    levels = dict(marks or {})
    drawn = [float(v) for v in (*levels.values(), *y_holds)]
    drawn += [v for many in runs.values() for run in many for v in run if math.isfinite(v)]
    for name, scale, those in (("x", x_log, at), ("y", y_log, drawn)):
        if not those:
            raise ValueError("lines has no finite value to draw")
        if scale and min(those) <= 0:
            raise ValueError(f"{name} is logarithmic and needs values above 0; got {min(those)}")

    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context(_STYLE, after_reset=True):  # whatever the reader's own style is
        fig = Figure()
        axes = fig.add_subplot()
        x_ticks = _axis(axes, "x", at, x_log, most=int(width // 66))
        y_ticks = _axis(axes, "y", drawn, y_log, most=5)
        curves = [_curve(axes, at, many, i, points) for i, many in enumerate(runs.values())]
        columns = _columns([text_width(name) + 42 for name in runs], width)
        top = 19 * math.ceil(len(runs) / columns) + 2 if len(runs) > 1 else 4
        top += 25 if y_title else 4
        right = max(12, text_width(x_ticks[-1]) / 2)
        height = top + _PLOT + (44 if x_title else 26)
        fig.set_size_inches(width / 72, height / 72)
        fig.subplots_adjust(
            left=(max(map(text_width, y_ticks)) + 12) / width,
            right=1 - right / width,
            top=1 - top / height,
            bottom=1 - (top + _PLOT) / height,
        )
        axes.set_xlabel(x_title)
        _note(axes, y_title, ("figure fraction", "axes fraction"), (0, 1), (2, 12), "left")
        for name, level in levels.items():
            axes.axhline(level, color="black", linewidth=1.5, linestyle=(0, (3, 3)), clip_on=False)
            # beneath the line where there is room, since what falls towards a level lies above it
            room = axes.get_yaxis_transform().transform((0, level))[1] - axes.bbox.y0
            beside = (0, -15 if room > 18 else 5)
            _note(axes, name, ("axes fraction", "data"), (1, level), beside, "right")
        if len(runs) > 1:
            fig.legend(
                curves,
                list(runs),
                loc="upper left",
                ncols=columns,
                frameon=False,
                borderpad=0.15,
                borderaxespad=0,
                labelspacing=0.46,
                handlelength=22 / 13,
                handletextpad=6 / 13,
                columnspacing=14 / 13,
            )
        return Picture(page_svg(fig, digits=1, zoom=1.2), alt)


def _runs(values: Any) -> list[list[float]]:
    found = numbers(values)
    return found if found and isinstance(found[0], list) else [found]


def _axis(axes: Any, name: str, values: list[float], log: bool, most: int) -> list[str]:
    """Give an axis its scale, limits and about `most` round ticks, and return what they say."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    axis, low, high = getattr(axes, f"{name}axis"), min(values), max(values)
    locator: Any
    if log:
        axes.set(**{f"{name}scale": "log"})
        few_decades = 2 * math.log10(high / low) <= most + 1
        locator = LogLocator(subs=(1, 2, 5) if few_decades else (1,), numticks=most + 3)
        axis.set_minor_locator(NullLocator())
    else:
        whole = name == "x" and all(v == round(v) for v in values)
        locator = MaxNLocator(most, steps=[1, 2, 2.5, 5, 10], integer=whole)
    axis.set_major_locator(locator)
    axis.set_major_formatter(lambda tick, _: _said(tick))
    low, high = locator.nonsingular(low, high)
    if name == "y":
        axes.grid(axis="y", clip_on=False)
        if not log:
            low, high = locator.view_limits(low, high)  # round numbers, a little beyond
    axes.set(**{f"{name}lim": (low, high)})
    return [_said(tick) for tick in axis.get_majorticklocs() if low <= tick <= high] or [""]


def _curve(axes: Any, at: list[float], many: list[list[float]], place: int, points: bool) -> Any:
    import numpy as np

    step = max(1, math.ceil(len(at) / _MOST_POINTS))
    kept = sorted({*range(0, len(at), step), len(at) - 1})
    x, ys = np.array(at)[kept], np.ma.masked_invalid(np.array(many)[:, kept])
    look: Any = {"color": PALETTE[place % len(PALETTE)], "clip_on": False}
    if len(many) > 1:
        axes.fill_between(x, ys.min(0), ys.max(0), alpha=0.2, linewidth=0, **look)
    middle = np.ma.median(ys, axis=0)  # type: ignore[no-untyped-call]  # numpy's own gap
    if points:
        axes.plot(x, middle, "o", markersize=7, markeredgewidth=0, **look)
    dashes = _DASHES[place % len(_DASHES)]
    return axes.plot(x, middle, linestyle=(0, dashes) if dashes else "-", **look)[0]


def _note(
    axes: Any,
    words: str,
    within: tuple[str, str],
    at: tuple[Number, Number],
    beside: tuple[Number, Number],
    side: str,
) -> None:
    axes.annotate(
        words, at, beside, within, "offset points", ha=side, va="baseline", annotation_clip=False
    )


def _columns(wide: Sequence[Number], width: Number) -> int:
    """Return how many columns of a legend fit, filled from top to bottom."""
    for columns in range(len(wide), 1, -1):
        rows = math.ceil(len(wide) / columns)
        if sum(max(wide[i : i + rows]) for i in range(0, len(wide), rows)) <= width + 14:
            return columns
    return 1


def _said(tick: float) -> str:
    if tick and not 1e-3 <= abs(tick) < 1e5:
        mantissa, power = f"{tick:.2e}".split("e")
        return f"{float(mantissa):g}e{int(power)}"
    return f"{tick:,.4g}" if abs(tick) < 1000 else f"{tick:,.0f}"
