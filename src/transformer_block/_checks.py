"""Checks at the door of every part: the rule, the values, the way out."""

import torch
from torch import Tensor


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
        fitting = sorted(
            (h for h in range(1, d_model + 1) if d_model % h == 0 and h > 1),
            key=lambda h: abs(h - n_heads),
        )[:2]
        raise ValueError(
            f"n_heads must divide d_model; {d_model} / {n_heads} leaves {d_model % n_heads}; "
            f"try {' or '.join(map(str, sorted(fitting))) or 1}"
        )
    return d_model // n_heads


def stream(X: Tensor, d_model: int, name: str = "X") -> None:
    """Refuse an input that is not a finite floating-point `[..., d_model]`.

    Under `torch.func.vmap` and `torch.compile` values cannot be read; there only the shape and
    the dtype are checked.

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
    if not torch.compiler.is_compiling() and not _all_finite(X):
        raise ValueError(
            f"{name} holds {int((~X.isfinite()).sum())} values that are not finite (NaN or inf); "
            "one of them would spread to every token that may read it"
        )


def mask(allowed: Tensor | None) -> None:
    """Refuse a mask (True = may read) that leaves a query nothing to read.

    Raises:
        ValueError: because a softmax over nothing is not a number.
    """
    if allowed is None:
        return
    if allowed.dtype != torch.bool:
        raise ValueError(f"a mask must be boolean (True = may read), not {allowed.dtype}")
    if not torch.compiler.is_compiling() and not allowed.any(dim=-1).all():
        raise ValueError(
            "the mask lets a query read no key at all, and a softmax over nothing is not a "
            "number; let each query read at least itself (True = may read)"
        )


def _all_finite(X: Tensor) -> bool:
    try:  # a finite sum is proof, and cheap; an infinite one may also come of large numbers
        return bool(X.sum().isfinite()) or bool(X.isfinite().all())
    except RuntimeError:  # vmap: a batched value decides no branch
        return True
