"""Check an exercise and name the mistake."""

import copy
import dis
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from types import CodeType

import torch

from transformer_block.notebook.printing import say

Answer = Callable[..., object]


def check(
    mine: Answer,
    reference: Answer,
    cases: Iterable[object],
    mistakes: Mapping[str, Answer] | None = None,
) -> None:
    """Compare the reader's function with the reference and say what is wrong, never raise for it.

    Args:
        mine: the reader's function; while it has no body, returns ... or raises
            NotImplementedError, it counts as not yet written. Give it as it is: around it, another
            function would hide that its body is empty.
        reference: the right one.
        cases: arguments to try, each a tuple, or one argument alone. Each function gets a deep
            copy of them, so that none can spoil them for another.
        mistakes: sentence → function with that mistake. The sentence of the first one that answers
            as `mine` does is told, so put what the reader did: "you scale by d_model, not d_head".

    Raises:
        ValueError: no cases, or a mistake that these cases cannot tell from the right answer.
    """
    tried = [case if isinstance(case, tuple) else (case,) for case in cases]
    if not tried:
        raise ValueError("check needs at least one case to try")
    expected = [reference(*_copy(case)) for case in tried]
    wrong = {said: [_answer(f, case) for case in tried] for said, f in (mistakes or {}).items()}
    for said, answers in wrong.items():
        if all(map(_same, answers, expected)):
            raise ValueError(f"these cases do not show the mistake {said!r}; add one that does")
    got = [_answer(mine, case) for case in tried]
    if all(map(_unwritten, got)) or (_is_empty(mine) and all(a is None for a in got)):
        say("… nothing yet: write your answer in the cell above and run both again.")
    else:
        say(_verdict(got, expected, wrong, tried))


def _verdict(
    got: list[object],
    expected: list[object],
    wrong: Mapping[str, list[object]],
    tried: list[tuple[object, ...]],
) -> str:
    if all(answer is None for answer in got):
        return "✗ Your function returns nothing: is a `return` missing?"
    for number, (answer, right, case) in enumerate(zip(got, expected, tried, strict=True), 1):
        if answer is None or _unwritten(answer):
            return (
                f"✗ For case {number} of {len(tried)} your function returns nothing: "
                f"is a `return` missing there?\n{_case(number, len(tried), case)}"
            )
        if isinstance(answer, Exception):
            said = f"{type(answer).__name__}: {answer}".rstrip(": ")
            return f"✗ Your code stops with {said}\n{_case(number, len(tried), case)}"
        if not _same(answer, right):
            for said, answers in wrong.items():
                if all(map(_same, got, answers)):
                    return f"✗ Not yet: it looks as if {said}."
            return f"✗ {_difference(answer, right)}\n{_case(number, len(tried), case)}"
    many = "the one case" if len(tried) == 1 else f"all {len(tried)} cases"
    return f"✓ Right: your answer agrees with the reference on {many}."


def _unwritten(answer: object) -> bool:
    return answer is ... or isinstance(answer, NotImplementedError)


def _is_empty(function: Answer) -> bool:
    """Tell whether a function does nothing but return None, as a body of `...` or `pass` does."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code is not None and _steps(code) == _steps((lambda: None).__code__)


def _steps(code: CodeType) -> list[str]:
    return [step.opname for step in dis.get_instructions(code) if step.opname != "NOP"]


def _answer(function: Answer, case: tuple[object, ...]) -> object:
    try:
        return function(*_copy(case))
    except Exception as stopped:  # whatever the reader's code raises is told, not thrown
        return stopped


def _copy(case: tuple[object, ...]) -> tuple[object, ...]:
    # torch deep-copies no tensor that was computed with gradients; it is cut off from them
    return tuple(
        v.detach().clone().requires_grad_(v.requires_grad)
        if isinstance(v, torch.Tensor)
        else copy.deepcopy(v)
        for v in case
    )


def _same(a: object, b: object) -> bool:
    if isinstance(a, Exception) or isinstance(b, Exception):
        return False
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        if not a.is_floating_point():
            return torch.equal(a, b)
        # enough for another order of summation, far less than any mistake
        near = 1e-9 if a.dtype == torch.float64 else 1e-5
        return torch.allclose(a, b, rtol=near, atol=near, equal_nan=True)
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    numbers = (int, float)
    if isinstance(a, numbers) and isinstance(b, numbers):
        return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9)
    return type(a) is type(b) and bool(a == b)


def _difference(mine: object, right: object) -> str:
    if isinstance(mine, torch.Tensor) and isinstance(right, torch.Tensor):
        if mine.shape != right.shape:
            return f"Your answer has shape {list(mine.shape)}, expected {list(right.shape)}."
        if mine.dtype != right.dtype:
            return f"Your answer is {mine.dtype}, expected {right.dtype}."
        differ = mine != right
        if mine.is_floating_point():
            differ = ~torch.isclose(mine, right, rtol=1e-5, atol=1e-5, equal_nan=True)
            differ = differ if bool(differ.any()) else mine != right
        at = tuple(int(i) for i in differ.nonzero()[0])
        where = f"at {list(at)}" if at else "as a number"
        return (
            f"{int(differ.sum())} of {mine.numel()} values differ; the first, {where}: "
            f"yours is {_short(mine[at].item())}, expected {_short(right[at].item())}."
        )
    if type(mine) is not type(right) and not _are_numbers(mine, right):
        return f"Your answer is a {type(mine).__name__}, expected a {type(right).__name__}."
    if isinstance(mine, (tuple, list)) and isinstance(right, (tuple, list)):
        if len(mine) != len(right):
            return f"Your answer has {len(mine)} parts, expected {len(right)}."
        part = next(i for i, (a, b) in enumerate(zip(mine, right, strict=True)) if not _same(a, b))
        return f"Part {part}: {_difference(mine[part], right[part])}"
    if isinstance(mine, dict) and isinstance(right, dict) and mine.keys() == right.keys():
        key = next(key for key in right if not _same(mine[key], right[key]))
        return f"At {key!r}: {_difference(mine[key], right[key])}"
    return f"Your answer is {_short(mine)}, expected {_short(right)}."


def _are_numbers(*values: object) -> bool:
    return all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)


def _short(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _case(number: int, many: int, case: tuple[object, ...]) -> str:
    given = ", ".join(
        f"tensor of shape {list(v.shape)}" if isinstance(v, torch.Tensor) else _short(v)
        for v in case
    )
    return f"  This was case {number} of {many}: {given}"
