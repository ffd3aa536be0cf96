import contextlib
import io

import pytest

from transformer_block.notebook import check, verify


def printed(encoding, speak):
    """Return what a console of this encoding shows."""
    console = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    with contextlib.redirect_stdout(console):
        speak()
    console.flush()
    return console.buffer.getvalue().decode(encoding)


without_a_tick = pytest.mark.parametrize("encoding", ["cp1252", "ascii", "latin-1", "cp936"])


@without_a_tick
def test_a_claim_is_printed_where_there_is_no_tick(encoding):
    told = printed(encoding, lambda: verify("a tick ✓ and a word, naïve 公园", True))
    assert told.startswith("[ok] a tick [ok] and a word, na")
    assert ("公园" in told) == (encoding == "cp936")
    assert told.endswith("\n")


@without_a_tick
def test_each_verdict_is_printed_where_there_is_no_tick(encoding):
    def speak():
        check(lambda x: ..., abs, [-3])
        check(abs, abs, [-3])
        check(lambda x: x, abs, [-3], {"the sign stays (✗)": lambda x: x})

    nothing, right, wrong = printed(encoding, speak).splitlines()
    assert nothing.endswith(" nothing yet: write your answer in the cell above and run both again.")
    assert right == "[ok] Right: your answer agrees with the reference on the one case."
    assert wrong == "[no] Not yet: it looks as if the sign stays ([no])."


def test_elsewhere_the_signs_stay():
    assert printed("utf-8", lambda: verify("公园", True)) == "✓ 公园\n"
