"""Checks at the door of every part: the rule, the values, the way out.

Shapes and dtypes are checked by every part, since that costs nothing. Values (NaN, inf, a mask that
hides all) cost a pass over the tensor, so they are looked at once, by the outermost part that is
called: the parts inside a `door` do not look again. They are looked at only where that makes
nobody wait: on the CPU. On a GPU reading one number would hold up the queue of kernels, on the meta
device there are none, and under `torch.compile`, `torch.func.vmap` and fake tensors no number can
decide a branch; there, values pass unseen.
"""

import threading
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


class _Inside(threading.local):
    """Say whether this thread is inside a door: the values have been looked at."""

    yes = False


_inside = _Inside()


def door(forward: Callable[P, R]) -> Callable[P, R]:
    """Look at the values given to a forward that calls other parts, unless an outer door has."""

    @wraps(forward)
    def checked(*given: P.args, **named: P.kwargs) -> R:
        if torch.compiler.is_compiling() or _inside.yes:
            return forward(*given, **named)
        X = given[1] if len(given) > 1 else named.get("X")  # given[0] is the part itself
        allowed = given[2] if len(given) > 2 else named.get("mask")
        if isinstance(X, Tensor) and X.is_floating_point():
            finite(X)
        if isinstance(allowed, Tensor):
            mask(allowed)
        _inside.yes = True
        try:
            return forward(*given, **named)
        finally:
            _inside.yes = False

    return checked


def positive(**sizes: int) -> None:
    """Refuse sizes that are not whole numbers of at least 1.

    Raises:
        ValueError: naming the size and its value.
    """
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, not {size!r}")


def divides(n_heads: int, d_model: int) -> int:
    """Return d_head = d_model / n_heads.

    Raises:
        ValueError: if a remainder is left, naming numbers of heads that would fit.
    """
    positive(n_heads=n_heads, d_model=d_model)
    if d_model % n_heads:
        fitting = [h for h in range(2, d_model + 1) if d_model % h == 0]
        nearest = sorted(sorted(fitting, key=lambda h: abs(h - n_heads))[:2])
        raise ValueError(
            f"n_heads must divide d_model; {d_model} / {n_heads} leaves {d_model % n_heads}; "
            f"try {' or '.join(map(str, nearest))}"
        )
    return d_model // n_heads


def stream(X: Tensor, d_model: int, name: str = "X") -> None:
    """Refuse an input that is not a finite floating-point `[..., d_model]`.

    Raises:
        ValueError: naming the rule and what was given.
    """
    if not X.is_floating_point():
        raise ValueError(
            f"{name} must hold floating-point numbers, not {X.dtype}; "
            "token ids go through the embedding first"
        )
    if X.ndim < 1 or X.shape[-1] != d_model:
        raise ValueError(
            f"the last axis of {name} must have d_model = {d_model} features, "
            f"but its shape is {list(X.shape)}"
        )
    if X.ndim > 1 and X.shape[-2] == 0:
        raise ValueError(f"{name} holds no token (shape {list(X.shape)}); give at least one")
    if not (torch.compiler.is_compiling() or _inside.yes):
        finite(X, name)


def mask(allowed: Tensor | None) -> None:
    """Refuse a mask (True = may read) that is not boolean or leaves a query nothing to read.

    Raises:
        ValueError: naming the rule and what was given.
    """
    if allowed is None:
        return
    if allowed.dtype != torch.bool:
        raise ValueError(f"a mask must be boolean (True = may read), not {allowed.dtype}")
    if not (torch.compiler.is_compiling() or _inside.yes):
        readable(allowed)


def ids(ids: Tensor, vocab_size: int) -> Tensor:
    """Return token ids `[B, n]` as int64: whole numbers of any kind, within the vocabulary.

    Raises:
        ValueError: naming the rule and what was given.
    """
    if ids.numel() == 0:
        raise ValueError(f"ids hold no token (shape {list(ids.shape)}); give at least one")
    kind = ids.dtype
    if kind.is_floating_point or kind.is_complex or kind == torch.bool or ids.ndim != 2:
        raise ValueError(
            f"ids must be whole numbers [B, n], not {kind} {list(ids.shape)}"
            + ("; one sequence is ids[None]" if ids.ndim == 1 else "")
        )
    ids = ids.long()
    if _can_be_read(ids):
        low, high = ids.aminmax()
        if known((low < 0) | (high >= vocab_size)):
            raise ValueError(f"ids must lie in 0 … {vocab_size - 1}, but run from {low} to {high}")
    return ids


def finite(X: Tensor, name: str = "X") -> None:
    """Refuse NaN and inf, wherever values can be read.

    Raises:
        ValueError: because one of them would spread to every token that may read it.
    """
    if not _can_be_read(X) or known(X.sum().isfinite()):
        return  # a finite sum is proof, and cheap; an infinite one may also come of large numbers
    if known((~X.isfinite()).any()):
        raise ValueError(
            f"{name} holds {int((~X.isfinite()).sum())} values that are not finite (NaN or inf); "
            "one of them would spread to every token that may read it"
        )


def readable(allowed: Tensor) -> None:
    """Refuse a mask under which a query may read nothing, wherever values can be read.

    Raises:
        ValueError: because a softmax over nothing is not a number.
    """
    if _can_be_read(allowed) and known((~allowed.any(dim=-1)).any()):
        raise ValueError(
            "the mask lets a query read no key at all, and a softmax over nothing is not a "
            "number; let each query read at least itself (True = may read)"
        )


def known(truth: Tensor) -> bool:
    """Say whether a truth value is known to be true; False where it cannot be read."""
    try:
        return _can_be_read(truth) and bool(truth)
    except RuntimeError:  # vmap or a fake tensor
        return False


def _can_be_read(X: Tensor) -> bool:
    return X.device.type == "cpu" and not torch.compiler.is_compiling()
