"""State a claim to the reader and test it at once."""

import sys

from transformer_block.notebook.measurements import write_down
from transformer_block.notebook.printing import say


class ClaimError(AssertionError):
    """A sentence of the book turned out to be false."""


def verify(sentence: str, condition: object) -> None:
    """Print the sentence with a tick, or raise it if the condition is false.

    Args:
        sentence: what the reader is told.
        condition: a bool, or one boolean number of torch or numpy.

    Raises:
        ClaimError: the condition is false.
        TypeError: the condition is something else; a float or a whole tensor decides nothing.

    >>> verify("two and two make four", 2 + 2 == 4)
    ✓ two and two make four
    """
    if not isinstance(condition, bool):
        dtype, shape = getattr(condition, "dtype", None), getattr(condition, "shape", None)
        if shape is not None and tuple(shape):
            raise TypeError(
                f"verify needs one truth value; this one has shape {list(shape)}; "
                "say which you mean with .all() or .any()"
            )
        if str(dtype) not in ("torch.bool", "bool"):
            kind = type(condition).__name__ if dtype is None else f"{dtype} number"
            raise TypeError(
                f"verify needs True or False; this is {kind}: {condition!r}; "
                "compare it with what you expect, for example abs(difference) < 1e-6"
            )
    if not condition:
        raise ClaimError(f"this turned out to be false: {sentence}")
    say(f"✓ {sentence}")
    write_down(sentence, sys._getframe(1))
