"""Say how far a long cell is, on one line that stays."""

from collections.abc import Callable
from typing import Any


def progress(total: int, what: str) -> Callable[..., None]:
    """Show "0 of total" and return a function that counts one up at each call.

    Tag the cell `nbval-ignore-output`: how often the line is renewed depends on the machine.

    Args:
        total: how many there will be, at least 1.
        what: their name, in the plural.

    Raises:
        ValueError: for a total below 1.
    """
    if total < 1:
        raise ValueError(f"progress needs something to count, at least 1, not {total}")
    from IPython.display import display

    done = 0

    def line() -> dict[str, str]:
        return {"text/plain": f"{done} of {total} {what}"}

    shown: Any = display(line(), raw=True, display_id=True)  # type: ignore[no-untyped-call]  # IPython is untyped

    def count(*_: object) -> None:
        nonlocal done
        done += 1
        if shown is not None:  # no notebook, no line to renew
            shown.update(line(), raw=True)

    return count
