"""Run the recorded studies whose code has changed since, and store their rows.

`python -m book.tools.studies [names...]`; with `--all` also those that are up to date. A study is
a module of transformer_block.notebook.studies (see transformer_block.notebook.recorded).
"""

import argparse
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor

from book.tools.common import Problem, run_command
from transformer_block.notebook import recorded


def main() -> None:
    """Run the named studies, or all that are stale."""
    parser = argparse.ArgumentParser(prog="python -m book.tools.studies", description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--all", action="store_true", help="also those that are up to date")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="rows at once")
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(recorded.names()):
        raise Problem(
            f"There is no study {unknown.pop()!r}; there are {', '.join(recorded.names())}."
        )
    for name in asked.names or recorded.names():
        if not asked.all and not recorded.is_stale(name):
            print(f"{name}: up to date")
            continue
        made_from = recorded.digest(name)  # taken first: someone may edit while it runs
        began, wanted = time.monotonic(), recorded.settings(name)
        with ProcessPoolExecutor(asked.jobs, multiprocessing.get_context("spawn")) as pool:
            rows = []
            for row in pool.map(recorded.run_row, [name] * len(wanted), *zip(*wanted, strict=True)):
                rows.append(row)
                print(f"  {name} {len(rows)}/{len(wanted)}: {row}"[:120], flush=True)
        recorded.record(name, rows, made_from)
        print(f"{name}: {len(rows)} rows, {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    run_command(main)
