"""The shape ledger of one block: every tensor, what it costs, and which part costs most."""

from collections.abc import Sequence
from html import escape

from transformer_block.counting import block_flops, shape_ledger
from transformer_block.figures.picture import SERIES, dot, drawing, text

_WIDTH = 400.0
_HEADER = ("", "shape", "parameters", "MFLOP", "kB")
# A hundred of these travel in one widget: one rule for all cells, and no closing tags.
_STYLE = (
    ".tb-l{border-collapse:collapse;color:inherit;font-variant-numeric:tabular-nums;"
    "line-height:1.35;white-space:nowrap;margin:0;font-size:12px}"
    ".tb-l td,.tb-l th{text-align:right;padding:.15em .5em;border-bottom:1px solid #8885}"
    ".tb-l :first-child{text-align:left}"
)


class Ledger:
    """A table under two bars that show who has the weights, and who does the work."""

    def __init__(self, html: str, alt: str) -> None:
        self._html, self.alt = html, alt

    def _repr_html_(self) -> str:
        return self._html

    def __repr__(self) -> str:
        return self.alt


def ledger(n: int, d_model: int, n_heads: int, d_ff: int) -> Ledger:
    """Write down every step of a Pre-Norm block on n tokens, above it the parts' shares.

    Parameters and FLOPs (multiply and add, in millions) are those that make the tensor, kB those
    that hold all its copies at 4 bytes a number.

    Raises:
        ValueError: the heads do not divide d_model.

    >>> ledger(n=100, d_model=512, n_heads=8, d_ff=2048)
    100 × 512 with 8 heads, d_ff 2048: of 650 MFLOP the projections of attention take 32 %, \
its scores 3 %, the FFN 65 %; of 3.2 million parameters the FFN has 67 %.
    """
    rows = shape_ledger(n, d_model, n_heads, d_ff)
    work = block_flops(n, d_model, n_heads, d_ff)
    weights = sum(row.parameters for row in rows)
    ffn = sum(row.parameters for row in rows if row.code.startswith("ffn"))
    norms = sum(row.parameters for row in rows if row.code.startswith("norm"))
    has = [weights - ffn - norms, 0, ffn]
    does = [work.qkvo, work.scores, work.ffn]

    shares = [[part / sum(parts) for part in parts] for parts in (has, does)]
    alt = (
        f"{n} × {d_model} with {n_heads} heads, d_ff {d_ff}: of {_short(work.total / 1e6)} MFLOP "
        f"the projections of attention take {shares[1][0]:.0%}, its scores {shares[1][1]:.0%}, "
        f"the FFN {shares[1][2]:.0%}; of {weights / 1e6:.1f} million parameters the FFN has "
        f"{shares[0][2]:.0%}."
    ).replace("%", " %")
    bars = drawing(_WIDTH, 118, _bars(shares, [weights, work.total]))
    lines = [
        (
            row.name.removeprefix("attention ").partition(" of each")[0].partition(", ")[0],
            f"{'' if row.heads is None else f'{n_heads} × '}{list(row.shape)}",
            f"{row.parameters:,}" if row.parameters else "",
            _short(row.flops / 1e6) if row.flops else "",
            _short(row.bytes / 1e3),
        )
        for row in rows
    ]
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell, False)}" for cell in line) for line in lines
    )
    head = "<tr>" + "".join(f"<th scope=col>{word}" for word in _HEADER)
    html = (
        f'<style>{_STYLE}</style><svg role="img" aria-label="{escape(alt)}"{bars[4:]}'
        f'<div style="overflow-x:auto" tabindex=0 role=group aria-label="shape ledger">'
        f"<table class=tb-l>{head}{body}</table></div>"
    )
    return Ledger(html, alt)


def _bars(shares: Sequence[Sequence[float]], totals: Sequence[int]) -> list[str]:
    parts = []
    for row, (what, share, total) in enumerate(
        zip(("million parameters", "MFLOP"), shares, totals, strict=True)
    ):
        y = 42 * row
        inner = f" (scores {share[1]:.0%})" if share[1] else ""
        said = f"{_short(total / 1e6)} {what}: attention {1 - share[2]:.0%}{inner}, "
        said += f"FFN {share[2]:.0%}"
        parts.append(text(0, y + 14, said.replace("%", " %")))
        x = 0.0
        for place, part in enumerate(share):
            wide = _WIDTH * part
            parts.append(
                f'<path d="M{dot(x)} {y + 20}h{dot(wide)}v14H{dot(x)}z" '
                f'style="fill:{SERIES[place]}"/>'
            )
            x += wide
    for place, (x, name) in enumerate(((0, "attention: W_Q … W_O"), (180, "scores"), (265, "FFN"))):
        parts.append(f'<path d="M{x} 98h12v12h-12z" style="fill:{SERIES[place]}"/>')
        parts.append(text(x + 18, 109, name))
    return parts


def _short(number: float) -> str:
    """Write about three digits.

    >>> _short(0.0512), _short(12.34), _short(4294.9)
    ('0.05', '12.3', '4,295')
    """
    return (
        f"{number:,.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.2f}"
    )
