"""The width of a token on its way through the FFN, and what that width has bought."""

from collections.abc import Mapping, Sequence

import torch

from transformer_block.feed_forward import FeedForward
from transformer_block.figures.picture import SERIES, Picture, dot, drawing, text

_WIDTH, _LEFT = 400.0, 92.0
Shares = Mapping[str, Sequence[float]]


def up_and_down(
    d_model: int,
    d_ff: int,
    bought: Mapping[str, Shares],
    expected: Mapping[str, tuple[str, float]] | None = None,
    *,
    widest: int | None = None,
) -> Picture:
    """Draw d_model → d_ff → d_model to scale, and shares measured at that width beneath.

    Args:
        d_model: the width of a token.
        d_ff: the width between W₁ and W₂.
        bought: what was measured → who was measured → its share (0 to 1) in each seed; the mean
            is a bar, the least and largest a line across its end.
        expected: what was measured → (name, share) of a mark to compare with.
        widest: the width that fills the drawing; the larger of the two if not given.

    Raises:
        ValueError: a share below 0 or above 1, or none at all.
    """
    for shares in (values for those in bought.values() for values in those.values()):
        if not shares or min(shares) < 0 or max(shares) > 1:
            raise ValueError(f"each bar needs shares from 0 to 1; got {list(shares)}")
    with torch.device("meta"):  # counted, not made
        weights = sum(p.numel() for p in FeedForward(d_model, d_ff).parameters())
    unit = (_WIDTH - 2) / (widest or max(d_model, d_ff))
    parts, y, told = [], 4.0, list[str]()
    for name, width in (("x", d_model), ("σ(x W₁ + b₁)", d_ff), ("FFN(x)", d_model)):
        long = width * unit
        bar = f"M{dot((_WIDTH - long) / 2)} {dot(y)}h{dot(long)}v24h-{dot(long)}z"
        parts.append(f'<path d="{bar}" style="fill:{SERIES[0]};fill-opacity:.3"/>')
        parts.append(text(_WIDTH / 2, y + 17, f"{name}: {width}", "middle"))
        y += 32
    parts.append(text(0, y + 14, f"d_model = {d_model}, d_ff = {d_ff}: {weights:,} parameters"))
    y += 44
    for what, those in bought.items():
        parts.append(text(0, y, what, more=' font-weight="600"'))
        y += 8
        top = y
        for place, (who, shares) in enumerate(those.items()):
            parts += _bar(y, who, shares, SERIES[place % len(SERIES)])
            told.append(f"{what}, {who}: {sum(shares) / len(shares):.2f}")
            y += 24
        if expected and what in expected:
            name, share = expected[what]
            x = _LEFT + share * _full()
            line = f"M{dot(x)} {dot(top)}V{dot(y + 2)}"
            parts.append(
                f'<path d="{line}" fill="none" stroke="currentColor" stroke-width="1.5" '
                'stroke-dasharray="3 3"/>'
            )
            parts.append(text(min(max(x, 60), _WIDTH - 60), y + 15, name, "middle"))
            y += 16
        y += 24
    return Picture(
        drawing(_WIDTH, y - 12, parts),
        f"{d_model} features, up to {d_ff}, down to {d_model}. {'; '.join(told)}.",
    )


def _full() -> float:
    return _WIDTH - _LEFT - 48


def _bar(y: float, who: str, shares: Sequence[float], colour: str) -> list[str]:
    mean, full = sum(shares) / len(shares), _full()
    long = max(mean * full, 1)
    low, high = _LEFT + min(shares) * full, _LEFT + max(shares) * full
    bar, span = f"h{dot(long)}v16h-{dot(long)}z", f"M{dot(low)} {dot(y + 11)}H{dot(high)}"
    fill = f"fill:{colour};fill-opacity:.6"
    return [
        text(_LEFT - 8, y + 15, who, "end"),
        f'<path d="M{dot(_LEFT)} {dot(y + 3)}{bar}" style="{fill}"/>',
        f'<path d="{span}" stroke="currentColor" stroke-width="2"/>',
        text(max(high, _LEFT + long) + 6, y + 15, f"{mean:.2f}"),
    ]
