"""Change any activation of a run: by a number, by a cut, by silence."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import EllipsisType

from torch import Tensor, nn

from transformer_block.activations.taps import Edit, matching, points, tapped

Index = int | slice | EllipsisType | Sequence[int]


@dataclass(frozen=True)
class SiteEdit:
    """Hold an edit that means something on some activations only, one function for each."""

    what: str
    sites: Mapping[str, Edit]

    def at(self, name: str) -> Edit:
        """Return the edit for an activation.

        Raises:
            ValueError: if it makes no sense there.
        """
        if (site := name.rpartition(".")[2]) not in self.sites:
            raise ValueError(f"{self.what} works on {' or '.join(self.sites)}, not on {name}")
        return self.sites[site]


@contextmanager
def intervene(model: nn.Module, edits: Mapping[str, Edit | SiteEdit]) -> Iterator[None]:
    """Replace activations, by the names of `record`, in every forward inside the `with` block.

    Each edit gets a copy of the tensor and returns one of the same shape; the rest of the model
    goes on from that. Names may hold `*`. The mask stays in force: it is applied after an edit of
    `S`, and again after an edit of `A`, so no edit lets a token read what it may not. An edited
    `A` is used as it is, without making its rows sum to 1.

    Everything is as before when the block ends, also by an error. Edits of nested blocks are
    applied in the order in which the blocks were entered.

    Raises:
        ValueError: for a name that does not exist; during the run, for an edit that returns no
            tensor of the same shape, dtype and device, or one that leaves a query nothing to read.
    """
    known = points(model)
    taps = []
    for pattern, edit in edits.items():
        for name in matching(pattern, known):
            at_site = edit.at(name) if isinstance(edit, SiteEdit) else edit
            part, site = known[name]
            taps.append((part, "edits", site, _checked(name, at_site)))
    with tapped(taps):
        yield


def cut_edge(query: int, key: int, heads: Sequence[int] | None = None) -> SiteEdit:
    """Keep the query from reading the key, in all heads or in those named.

    On `S` the score becomes −∞: as if the key could not be read at all, its weight goes to the
    other keys and the row still sums to 1. On `A` only the weight becomes 0: that share of the
    value is missing, the other weights stay.
    """

    def fill(value: float) -> Edit:
        def edit(S: Tensor) -> Tensor:
            for name, place, size in (
                ("query", query, S.shape[2]),
                ("key", key, S.shape[3]),
                *(("head", head, S.shape[1]) for head in heads or ()),
            ):
                _within(name, place, size)
            hs = range(S.shape[1]) if heads is None else heads
            S[:, list(hs), query, key] = value
            return S

        return edit

    return SiteEdit("cut_edge", {"S": fill(-math.inf), "A": fill(0.0)})


def zero_head(head: int) -> SiteEdit:
    """Silence one head: on `Z` what it read, on `addends` what it adds to the stream."""

    def edit(Z: Tensor) -> Tensor:
        _within("head", head, Z.shape[1])
        Z[:, head] = 0
        return Z

    return SiteEdit("zero_head", {"Z": edit, "addends": edit})


def scale(factor: int | float, at: Index | tuple[Index, ...] = ...) -> Edit:
    """Multiply the activation, or its part `at` an index, by a factor.

    >>> import torch
    >>> scale(10.0, at=(..., [0, 2]))(torch.ones(1, 3))
    tensor([[10.,  1., 10.]])
    """

    def edit(X: Tensor) -> Tensor:
        X[at] = X[at] * factor
        return X

    return edit


def set_to(value: int | float | Tensor, at: Index | tuple[Index, ...] = ...) -> Edit:
    """Replace the activation, or its part `at` an index, by a number or a tensor that fits.

    >>> import torch
    >>> set_to(0.0, at=(..., 1))(torch.ones(1, 3))
    tensor([[1., 0., 1.]])
    """

    def edit(X: Tensor) -> Tensor:
        X[at] = value
        return X

    return edit


def _within(name: str, place: int, size: int) -> None:
    if not 0 <= place < size:
        raise ValueError(f"{name} must lie in 0 … {size - 1}, not {place}")


def _checked(name: str, edit: Callable[[Tensor], object]) -> Edit:
    def checked(tensor: Tensor) -> Tensor:
        edited = edit(tensor.clone())
        if not isinstance(edited, Tensor):
            raise ValueError(f"the edit of {name} must return a tensor, not {edited!r}")
        if edited.shape != tensor.shape:
            raise ValueError(
                f"the edit of {name} must return the shape it was given, {list(tensor.shape)}, "
                f"not {list(edited.shape)}"
            )
        if (edited.dtype, edited.device) != (tensor.dtype, tensor.device):
            raise ValueError(
                f"the edit of {name} must return {tensor.dtype} on {tensor.device}, "
                f"not {edited.dtype} on {edited.device}"
            )
        return edited

    return checked
