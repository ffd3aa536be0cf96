"""Curves: a loss over steps, several seeds with their spread, a value against a size."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformer_block.notebook.figures.picture import (
    SERIES,
    Number,
    Picture,
    dot,
    drawing,
    numbers,
    text,
    text_width,
)

_PLOT, _MOST_POINTS = 220, 150
_DASHES = ["", "7 4", "2 3", "9 3 2 3", "4 2", "1 3"]  # colour is never the only difference


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
    drawn = [v for many in runs.values() for run in many for v in run if math.isfinite(v)]
    drawn += [*levels.values(), *y_holds]
    for name, scale, those in (("x", x_log, at), ("y", y_log, drawn)):
        if not those:
            raise ValueError("lines has no finite value to draw")
        if scale and min(those) <= 0:
            raise ValueError(f"{name} is logarithmic and needs values above 0; got {min(those)}")

    legend, top = _legend(list(runs), width)
    top += 22 if y_title else 8
    y_ticks, x_ticks = _ticks(min(drawn), max(drawn), y_log, 1), _ticks(min(at), max(at), x_log)
    left = max(text_width(_said(t)) for t in y_ticks) + 12
    low, high = min([*y_ticks, *drawn]), max([*y_ticks, *drawn])
    right_edge, bottom = width - 12.0, top + _PLOT
    place_x = _scale(min(at), max(at), left, right_edge, x_log)
    place_y = _scale(low, high, bottom, top, y_log)

    parts = [*legend, *([text(2, top - 9, y_title)] if y_title else [])]
    for tick in y_ticks:
        y = place_y(tick)
        parts.append(
            f'<path d="M{dot(left)} {dot(y)}H{dot(right_edge)}" stroke="currentColor" '
            'stroke-opacity=".18"/>'
        )
        parts.append(text(left - 6, y + 4.5, _said(tick), "end"))
    parts.append(f'<path d="M{dot(left)} {dot(bottom)}H{dot(right_edge)}" stroke="currentColor"/>')
    for tick in x_ticks:
        tx = place_x(tick)
        parts.append(f'<path d="M{dot(tx)} {dot(bottom)}v4" stroke="currentColor"/>')
        half = text_width(_said(tick)) / 2
        parts.append(text(min(tx, width - half), bottom + 18, _said(tick), "middle"))
    if x_title:
        parts.append(text((left + right_edge) / 2, bottom + 36, x_title, "middle"))
    for place, many in enumerate(runs.values()):
        parts += _curve(at, many, place, place_x, place_y, points)
    for name, level in levels.items():
        y = place_y(level)
        parts.append(
            f'<path d="M{dot(left)} {dot(y)}H{dot(right_edge)}" stroke="currentColor" '
            'stroke-width="1.5" stroke-dasharray="3 3"/>'
        )
        # beneath the line where there is room, since what falls towards a level lies above it
        over = y + 15 if y < bottom - 18 else y - 5
        parts.append(text(right_edge, over, name, "end"))
    return Picture(drawing(width, bottom + (44 if x_title else 26), parts), alt)


def _runs(values: Any) -> list[list[float]]:
    found = numbers(values)
    return found if found and isinstance(found[0], list) else [found]


def _legend(names: list[str], width: Number) -> tuple[list[str], float]:
    if len(names) < 2:
        return [], 0.0
    parts, x, y = [], 2.0, 13.0
    for place, name in enumerate(names):
        wide = 28 + text_width(name) + 14
        if x + wide > width and x > 2:
            x, y = 2.0, y + 19
        swatch = f'd="M{dot(x)} {dot(y - 4.5)}h22" fill="none" stroke-width="2.5"'
        parts.append(f'<path {swatch} style="stroke:{_colour(place)}"{_dash(place)}/>')
        parts.append(text(x + 28, y, name))
        x += wide
    return parts, y + 4


def _curve(
    at: list[float],
    many: list[list[float]],
    place: int,
    place_x: Callable[[float], float],
    place_y: Callable[[float], float],
    points: bool,
) -> list[str]:
    step = max(1, math.ceil(len(at) / _MOST_POINTS))
    kept = sorted({*range(0, len(at), step), len(at) - 1})
    columns = {i: sorted(v for run in many if math.isfinite(v := run[i])) for i in kept}
    xs = {i: place_x(at[i]) for i in kept}
    parts = []
    whole = [i for i in kept if columns[i]]
    if len(many) > 1 and len(whole) > 1:
        up = [f"{dot(xs[i])} {dot(place_y(columns[i][-1]))}" for i in whole]
        down = [f"{dot(xs[i])} {dot(place_y(columns[i][0]))}" for i in reversed(whole)]
        parts.append(
            f'<path d="M{"L".join(up + down)}z" style="fill:{_colour(place)};fill-opacity:.2"/>'
        )
    path, pen, dots = "", "M", ""
    for i in kept:
        if not columns[i]:
            pen = "M"
            continue
        y = place_y(_median(columns[i]))
        path, pen = f"{path}{pen}{dot(xs[i])} {dot(y)}", "L"
        dots += f"M{dot(xs[i] - 3.5)} {dot(y)}a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0"
    parts.append(
        f'<path d="{path}" fill="none" stroke-width="2" stroke-linejoin="round" '
        f'style="stroke:{_colour(place)}"{_dash(place)}/>'
    )
    if points:
        parts.append(f'<path d="{dots}" style="fill:{_colour(place)}"/>')
    return parts if path else []


def _colour(place: int) -> str:
    return SERIES[place % len(SERIES)]


def _dash(place: int) -> str:
    dash = _DASHES[place % len(_DASHES)]
    return f' stroke-dasharray="{dash}"' if dash else ""


def _median(ordered: list[float]) -> float:
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _scale(
    low: Number, high: Number, start: Number, end: Number, log: bool
) -> Callable[[float], float]:
    low, high = (math.log(low), math.log(high)) if log else (low, high)
    wide = (high - low) or 1.0
    return lambda v: start + ((math.log(v) if log else v) - low) / wide * (end - start)


def _ticks(low: Number, high: Number, log: bool, beyond: int = 0) -> list[float]:
    """Return round numbers from low to high, or with `beyond` the next ones outside, too."""
    if log:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        few = [1.0] if len(decades) > 4 else [1.0, 2.0, 5.0]
        skip = math.ceil(len(decades) / 7)
        found = [m * 10.0**d for d in decades[::skip] for m in few]
        return [t for t in found if low * 0.999 <= t <= high * 1.001] or [low, high]
    span = (high - low) or abs(high) or 1.0
    rough = span / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    if beyond:
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, last + 1)] or [low, high]


def _said(tick: float) -> str:
    if tick and not 1e-3 <= abs(tick) < 1e5:
        mantissa, power = f"{tick:.0e}".split("e")
        return f"{mantissa}e{int(power)}"
    return f"{tick:,.4g}" if abs(tick) < 1000 else f"{tick:,.0f}"
