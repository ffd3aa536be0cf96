"""The command line of a long training: python -m transformer_block.training --steps 200."""

import argparse
import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from transformer_block.training import states
from transformer_block.training.long_run import (
    LOSSES,
    MODEL,
    PICTURE,
    Listener,
    LongRun,
    Progress,
    run_plan,
)
from transformer_block.training.plan import Plan, nearest, plan_from, read_toml
from transformer_block.training.processes import WorkerLost, World, world

STOPPED = 130  # what a shell expects of a command that Ctrl-C has ended


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the flags say; return the exit status: 0, or what went wrong.

    What the user can mend is said in one line, on rank 0 alone; a lost process by all others.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    asked = _parse(given)
    try:
        plan = plan_from(_values(asked), str(asked.plan or "the command line"))
        with world(plan.device) as here:
            try:
                return _run(plan, asked.out, here, asked.fresh)
            except (ValueError, OSError) as error:
                return _fail(str(error), here.first)
    except (ValueError, OSError) as error:
        return _fail(str(error))
    except WorkerLost as error:
        return _fail(f"another process of this run is gone ({error}); {_what_stands(asked.out)}")
    except KeyboardInterrupt:
        return _fail(f"stopped at once; {_what_stands(asked.out)}", status=STOPPED)


def _what_stands(folder: Path) -> str:
    found = states.stored(folder) if folder.is_dir() else []
    return f"{found[0]} stands, and the same command goes on" if found else "nothing is kept"


def _fail(words: str, here: bool = True, status: int = 1) -> int:
    if here:
        print(f"error: {words}", file=sys.stderr, flush=True)
    return status


def _run(plan: Plan, folder: Path, here: World, fresh: bool) -> int:
    teller = Teller(plan, sys.stdout)
    listener = Listener(on_progress=teller.progress, on_word=teller.word)
    run = run_plan(plan, folder, here, fresh=fresh, listener=listener)
    if not here.first:
        return 0 if run.step == plan.steps else STOPPED
    if run.model is None:
        kept = "without a checkpoint" if run.saved_at is None else f"kept is step {run.saved_at}"
        teller.word(f"stopped after step {run.step}; {kept}; the same command goes on from there")
        return STOPPED
    teller.word(f"{folder / MODEL} holds the model, {folder / LOSSES} the losses")
    teller.word(_draw(run, folder / PICTURE))
    teller.word(f"it says: {run.data.sample(run.model, plan.seed)!r}")
    return 0


class Teller:
    """Write the progress: one line that renews itself on a terminal, else a line each time."""

    def __init__(self, plan: Plan, stream: Any) -> None:
        self.plan, self.stream, self.alive = plan, stream, stream.isatty()
        self.open_line = False

    def progress(self, at: Progress) -> None:
        """Say step, loss, the data's measure, speed and time left."""
        judged = "" if math.isnan(at.judged) else f" · {at.measure} {at.judged:.4f}"
        minutes, seconds = divmod(round(at.seconds_left), 60)
        line = (
            f"step {at.step} of {self.plan.steps} · loss {at.loss:.4f}{judged} · "
            f"{at.tokens_per_second:,.0f} tokens/s · {minutes}:{seconds:02d} left"
        )
        self._write(f"\r{line}\x1b[K" if self.alive else f"{line}\n")
        self.open_line = self.alive

    def word(self, words: str) -> None:
        """Say a sentence, on a line of its own."""
        self._write(f"\n{words}\n" if self.open_line else f"{words}\n")
        self.open_line = False

    def _write(self, text: str) -> None:
        kind = self.stream.encoding or "utf-8"  # a terminal that has no “·” gets a “?”
        self.stream.write(text.encode(kind, "replace").decode(kind))
        self.stream.flush()


def _draw(run: LongRun, path: Path) -> str:
    """Draw the losses into a file, and say what became of it."""
    from transformer_block import figures  # the command stands above every rung

    curves: dict[str, Any] = {"loss of the batch": run.losses[:, 0]}
    if run.plan.text and not run.judged[:, 1].isnan().any():
        curves["held-out loss"] = _between(run.judged, run.step)
    marks = {} if math.isnan(run.data.floor) else {"least possible": run.data.floor}
    try:
        picture = figures.lines(
            curves,
            range(1, run.step + 1),
            alt=f"The loss over {run.step} steps.",
            x_title="step",
            y_title="nats per token",
            marks=marks,
        )
        states.write_whole(path, picture.svg.encode())
    except ImportError:
        return "no picture of the losses: that needs matplotlib"
    except OSError as error:
        return f"no picture of the losses: {error.strerror or error}"
    return f"{path} shows the losses"


def _between(judged: torch.Tensor, steps: int) -> list[float]:
    """Return a value at each step: straight lines between those that were taken."""
    at, values = judged.T.contiguous()
    x = torch.arange(1, steps + 1, dtype=torch.float64)
    after = torch.searchsorted(at, x).clamp(max=len(at) - 1)
    before = (after - 1).clamp(min=0)
    share = ((x - at[before]) / (at[after] - at[before]).clamp(min=1)).clamp(0, 1)
    drawn = torch.lerp(values[before], values[after], share)
    return drawn.where(x >= at[0], math.nan).tolist()


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_block.training",
        usage="%(prog)s --out FOLDER [--plan FILE] [--fresh] [--steps 800 and other values]",
        description="Train a model, for as long as it takes: stop it, and give the same command "
        "again to go on. torchrun starts it in several processes.",
        allow_abbrev=False,
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of this run")
    parser.add_argument("--plan", type=Path, help="TOML file of the values below; flags go before")
    parser.add_argument("--fresh", action="store_true", help="begin again, the old run put aside")
    for option in fields(Plan):
        flag, default = "--" + option.name.replace("_", "-"), option.default
        how: dict[str, Any] = {"default": argparse.SUPPRESS}
        if isinstance(default, bool):
            how["action"] = argparse.BooleanOptionalAction
        else:
            how["type"] = float if isinstance(default, tuple) else type(default)
            how["choices"] = option.metadata["choices"] or None
        if isinstance(default, tuple):
            how["nargs"] = len(default)
        said = f"{option.metadata['says']} [{default}]"
        parser.add_argument(flag, help=said.replace("%", "%%"), **how)
    asked, unknown = parser.parse_known_args(arguments)
    for word in unknown:
        if word.startswith("--"):
            flags = [f for action in parser._actions for f in action.option_strings]
            parser.error(f"there is no {word}; {nearest(word.split('=')[0], flags)}")
    if unknown:
        parser.error(f"what is {shlex.join(unknown)}?")
    return asked


def _values(asked: argparse.Namespace) -> dict[str, Any]:
    """Return the plan's values: those of the file, and before them those of the flags."""
    names = {option.name for option in fields(Plan)}
    flags = {name: value for name, value in vars(asked).items() if name in names}
    return (read_toml(asked.plan) if asked.plan else {}) | flags


if __name__ == "__main__":
    sys.exit(main())
