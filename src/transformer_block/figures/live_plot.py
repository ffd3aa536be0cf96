"""A curve that grows while a long cell runs, and stays as one figure at its end."""

import time
from collections.abc import Mapping
from typing import Any

from transformer_block.figures.line_plot import lines
from transformer_block.figures.picture import Number, Picture


class LiveCurve:
    """Values that arrive one by one: `with live_curve(...) as curve: curve.add(0, loss=3.2)`."""

    def __init__(self, alt: str, every: Number, **style: Any) -> None:
        self._alt, self._every, self._style = alt, every, style
        self._x: list[float] = []
        self._y: dict[str, list[float]] = {}
        self._handle: Any = None
        self._last = 0.0

    def add(self, x: Number, **values: Number) -> None:
        """Add a point to each named curve; a name may come later or miss some."""
        for name in values:
            self._y.setdefault(name, [float("nan")] * len(self._x))
        self._x.append(float(x))
        for name, ys in self._y.items():
            ys.append(float(values.get(name, float("nan"))))
        if time.monotonic() - self._last >= self._every:
            self._show()

    def picture(self) -> Picture:
        """Return the curve so far.

        Raises:
            ValueError: there is no point yet.
        """
        return lines(self._y, self._x, alt=self._alt, **self._style)

    def __enter__(self) -> "LiveCurve":
        return self

    def __exit__(self, *_: object) -> None:
        if self._x:
            self._show()

    def _show(self) -> None:
        from IPython.display import display

        self._last = time.monotonic()
        if self._handle is None:
            self._handle = display(  # type: ignore[no-untyped-call]  # IPython is untyped
                self.picture(), display_id=True
            )
        else:
            self._handle.update(self.picture())


def live_curve(
    *,
    alt: str,
    x_title: str = "step",
    y_title: str = "",
    marks: Mapping[str, Number] | None = None,
    y_log: bool = False,
    every: Number = 0.5,
) -> LiveCurve:
    """Return a curve to feed from a long loop; the cell shows it growing and keeps the last state.

    Tag the cell `nbval-ignore-output`: how far the first picture got depends on the machine.

    Args:
        alt: what the finished picture shows, in a sentence.
        x_title: beneath the axis.
        y_title: above the axis, with its unit.
        marks: name → height of a level line.
        y_log: y on a logarithmic scale.
        every: seconds between two pictures.
    """
    return LiveCurve(alt, every, x_title=x_title, y_title=y_title, marks=marks, y_log=y_log)
