"""The page of benchmarks, made from the stored measurements when the book is built."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

MARK = "<!-- benchmarks -->"
RESULTS = "book/benchmarks.json"
HOW = (
    "How many times as long as ours the other takes: the median over the rounds, and in brackets "
    "the quartiles. Above 1, ours is faster."
)
Row = dict[str, Any]


def fill(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put the tables where the page asks for them."""
    if MARK in source[0]:
        file = Path(app.srcdir) / RESULTS
        app.env.note_dependency(str(file))
        source[0] = source[0].replace(MARK, tables(json.loads(file.read_text("utf-8"))))


def tables(results: Row) -> str:
    """Return all that was measured as Markdown, with what it comes to in words."""
    return "\n\n".join(
        [
            machine(results["machine"]),
            "## Times, beside other code",
            HOW,
            *ratios(results["ratios"]),
            "## How much of the machine is used",
            share(results["share"]),
            "## How time grows",
            growth(results["growth"]),
            "## Memory of a training step",
            memory(results["memory"]),
        ]
    )


def machine(facts: Row) -> str:
    """Say what all this was measured on."""
    return (
        f"Measured on {facts['cores']} cores of a processor that calls itself "
        f"“{facts['processor']}”, with {facts['threads']} threads, PyTorch {facts['torch']} and "
        f"Python {facts['python']}, in float32."
    )


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table; all columns but the first to the right."""
    line = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in (header, line, *rows))


def ratios(rows: Sequence[Row]) -> list[str]:
    """Return a table a size, and the geometric mean for each peer."""
    parts = []
    for size in dict.fromkeys(row["size"] for row in rows):
        here = [row for row in rows if row["size"] == size]
        tasks, peers = (list(dict.fromkeys(row[key] for row in here)) for key in ("task", "peer"))
        cells = {(row["peer"], row["task"]): _ratio(row["ratio"]) for row in here}
        body = [[peer, *(cells.get((peer, task), "–") for task in tasks)] for peer in peers]
        parts += [f"### {size}", table(["", *tasks], body)]
    means = []
    for peer in dict.fromkeys(row["peer"] for row in rows):
        medians = [row["ratio"][1] for row in rows if row["peer"] == peer]
        means.append(f"{peer} {statistics.geometric_mean(medians):.2f}")
    slower = [row for row in rows if row["ratio"][1] < 0.98]
    words = f"Over all cells, the geometric mean is: {', '.join(means)}. "
    if slower:
        worst = min(slower, key=lambda row: row["ratio"][1])
        words += (
            f"In {len(slower)} of {len(rows)} cells the other is faster by more than 2 %; most so "
            f"{worst['peer']}, {worst['task']}, {worst['size']}: {worst['ratio'][1]:.2f}."
        )
    else:
        words += f"In none of {len(rows)} cells is the other faster by more than 2 %."
    return [*parts, words]


def _ratio(quartiles: Sequence[float]) -> str:
    low, middle, high = quartiles
    return f"**{middle:.2f}** ({low:.2f} – {high:.2f})"


def share(rows: Sequence[Row]) -> str:
    """Return what share of a plain product's rate our forward reaches."""
    body = [[row["size"], *(f"{part:.0%}" for part in row["share"])] for row in rows]
    return (
        "Our forward's operations a second (chapter 06 counts them), as a share of what a plain "
        "matrix product of as many tokens with a W₁ of the same size reaches in the same "
        "rounds. The rest goes to norms, softmax, the bend, memory and Python.\n\n"
        + table(["size", "lower quartile", "median", "upper quartile"], body)
    )


def growth(rows: Sequence[Row]) -> str:
    """Return the fitted exponents."""
    names = {"n": "n", "d_model": "d_model", "n_layers": "L"}
    body = [
        [names[row["grows"]], f"{row['from']} … {row['to']}", f"{row['time']:.2f}", row["flops"]]
        for row in rows
    ]
    return (
        "Time and counted operations of a forward, as a power of one size, the others held (128 "
        "tokens, d_model 128, 2 blocks). An exponent of 1 means: twice the size, twice the time. "
        "Where time grows more slowly than operations, larger products use the machine better.\n\n"
        + table(["what grows", "from … to", "exponent of time", "of operations"], body)
    )


def memory(rows: Sequence[Row]) -> str:
    """Return what two training steps add to a process."""
    if not rows:
        return "Not measured: only Linux tells."
    body = [[f"{row['peer']} ({row['like']}'s layout)", row["megabytes"]] for row in rows]
    return (
        f"What two steps add to the process, in MB: gradients, AdamW's two moments, activations. "
        f"{rows[0]['size']}; a process for each.\n\n" + table(["model", "MB"], body)
    )


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to Sphinx."""
    app.connect("source-read", fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
