"""Run the recorded studies whose code has changed since, and store their rows.

`python -m book.tools.studies [names...]`; with `--all` also those that are up to date. A study is
a function of transformer_block.experiments (see transformer_block.experiments.recorded).
"""

import argparse
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor

from book.tools.common import Problem, run_command
from transformer_block.experiments.recorded import Row, studies, study_named


def main() -> None:
    """Run the named studies, or all that are stale."""
    parser = argparse.ArgumentParser(prog="python -m book.tools.studies", description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--all", action="store_true", help="also those that are up to date")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="rows at once")
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(studies()):
        raise Problem(f"There is no study {unknown.pop()!r}; there are {', '.join(studies())}.")
    for name in asked.names or studies():
        study = study_named(name)
        if not asked.all and not study.is_stale():
            print(f"{name}: up to date")
            continue
        made_from = study.fingerprint  # taken first: someone may edit while it runs
        began, wanted = time.monotonic(), study.wanted()
        with ProcessPoolExecutor(asked.jobs, multiprocessing.get_context("spawn")) as pool:
            rows = []
            for row in pool.map(measure, [name] * len(wanted), *zip(*wanted, strict=True)):
                rows.append(row)
                print(f"  {name} {len(rows)}/{len(wanted)}: {row}"[:120], flush=True)
        study.store(rows, made_from)
        print(f"{name}: {len(rows)} rows, {time.monotonic() - began:.0f} s", flush=True)


def measure(name: str, seed: int, setting: Row) -> Row:
    """Measure one row in a process of its own."""
    return study_named(name).measure(seed, setting)


if __name__ == "__main__":
    run_command(main)
