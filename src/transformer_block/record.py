"""Look at every activation of a run by its name, and change any of them."""

import difflib
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import EllipsisType
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from transformer_block import _checks
from transformer_block.attention import attention_scores
from transformer_block.block import PostNormBlock, PreNormBlock
from transformer_block.feed_forward import FeedForward, SwiGLU
from transformer_block.language_model import LanguageModel
from transformer_block.multi_head import MultiHeadAttention

Edit = Callable[[Tensor], Tensor]
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


class Run(Mapping[str, Tensor]):
    """Hold the activations of the last forward, by name, in the order they were computed."""

    def __init__(self, names: Iterable[str]) -> None:
        self._asked = set(names)
        self._kept: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name in self._kept:
            return self._kept[name]
        if name in self._asked:
            raise KeyError(f"{name} was not computed yet: run the model inside the with block")
        raise KeyError(f"{name} is not recorded here{_nearest(name, self._asked)}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def __repr__(self) -> str:
        return "\n".join(f"{name} {list(tensor.shape)}" for name, tensor in self.items())

    def grad(self, name: str) -> Tensor:
        """Return ∂loss/∂activation after `loss.backward()`.

        Raises:
            ValueError: if none was kept.
        """
        tensor = self[name]
        grad = tensor.grad if tensor.is_leaf or tensor.retains_grad else None
        if grad is None:
            raise ValueError(
                f"no gradient was kept for {name}: use record(..., grad=True), run the model with "
                "gradients on, and call backward() on something that depends on it"
            )
        return grad


@contextmanager
def record(
    model: nn.Module, names: str | Iterable[str] | None = None, *, grad: bool = False
) -> Iterator[Run]:
    """Keep the activations of every forward inside the `with` block; a later one replaces them.

    | name                   | what                                                      |
    |------------------------|-----------------------------------------------------------|
    | `X0`                   | X^(0), embedding + position                               |
    | `blocks.i.norm_mha`    | the norm's output                                         |
    | `blocks.i.mha.Q` K V   | `[B, h, n, d_head]`                                       |
    | `blocks.i.mha.S`       | scores *before* the mask, `[B, h, n, n_k]`                |
    | `blocks.i.mha.A`       | weights, each row sums to 1                               |
    | `blocks.i.mha.Z`       | A V                                                       |
    | `blocks.i.mha.concat`  | the heads side by side                                    |
    | `blocks.i.mha.addends` | Z_i W_O[i] of each head, `[B, h, n, d_model]`             |
    | `blocks.i.mha`         | O, the sum of the addends (and W_O's bias)                |
    | `blocks.i.H`           | the stream after attention                                |
    | `blocks.i.norm_ffn`    | the norm's output                                         |
    | `blocks.i.ffn.pre`     | what σ is applied to (SwiGLU: X W_gate; X W₁ is `ffn.up`) |
    | `blocks.i.ffn.hidden`  | what W₂ reads                                             |
    | `blocks.i.ffn`         | what is added to H                                        |
    | `blocks.i`             | X^(i+1)                                                   |
    | `norm_final`, `logits` |                                                           |

    A part alone has the same names without the path; its own input is `X` (a block) and its own
    output `out`. `names` keeps only some; `*` stands for anything. The tensors are those of the
    run itself, with their graph where there is one; `grad=True` keeps their gradients as well.
    Edits by `intervene` are seen, whichever `with` came first.

    Raises:
        ValueError: for a name that does not exist, with those nearest to it; for `S` or `A` of a
            part whose `attend` was replaced, because only the package's own can be looked into.

    >>> mha = MultiHeadAttention(d_model=12, n_heads=3)
    >>> with record(mha, ["A", "add*"]) as run:
    ...     O = mha(torch.zeros(2, 5, 12))
    >>> run
    A [2, 3, 5, 5]
    addends [2, 3, 5, 12]
    """
    points = _points(model)
    chosen = _matching("*" if names is None else names, points)
    run = Run(chosen)
    taps = []
    for name in chosen:
        part, site = points[name]
        taps.append((part, "readers", site, _reader(run._kept, name, grad)))
        if grad and site == "addends":  # makes O pass through them, else no gradient reaches them
            taps.append((part, "edits", site, torch.clone))
    with _tapped(taps):
        yield run


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
    points = _points(model)
    taps = []
    for pattern, edit in edits.items():
        for name in _matching(pattern, points):
            at_site = edit.at(name) if isinstance(edit, SiteEdit) else edit
            part, site = points[name]
            taps.append((part, "edits", site, _checked(name, at_site)))
    with _tapped(taps):
        yield


def traced_shapes(model: nn.Module, *inputs: Any) -> dict[str, tuple[int, ...]]:
    """Run the model once and return the shape of every activation, by name, in order."""
    with torch.no_grad(), record(model) as run:
        model(*inputs)
    return {name: tuple(tensor.shape) for name, tensor in run.items()}


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

    >>> scale(10.0, at=(..., [0, 2]))(torch.ones(1, 3))
    tensor([[10.,  1., 10.]])
    """

    def edit(X: Tensor) -> Tensor:
        X[at] = X[at] * factor
        return X

    return edit


def set_to(value: int | float | Tensor, at: Index | tuple[Index, ...] = ...) -> Edit:
    """Replace the activation, or its part `at` an index, by a number or a tensor that fits.

    >>> set_to(0.0, at=(..., 1))(torch.ones(1, 3))
    tensor([[1., 0., 1.]])
    """

    def edit(X: Tensor) -> Tensor:
        X[at] = value
        return X

    return edit


# ---- how it is done: names → (module, site), and one board for each tapped module ------------

_Point = tuple[nn.Module, str]
_Tap = tuple[nn.Module, str, str, Edit]  # module, "edits" or "readers", site, function


def _points(model: nn.Module) -> dict[str, _Point]:
    """Say where each name is to be found."""
    points: dict[str, _Point] = {}
    for path, part in model.named_modules():
        dot = f"{path}." if path else ""
        if isinstance(part, MultiHeadAttention):
            points |= {dot + site: (part, site) for site in ("Q", "K", "V", "S", "A", "Z")}
            points[dot + "concat"] = (part.W_O, "in")
            points[dot + "addends"] = (part, "addends")
        elif isinstance(part, PreNormBlock):
            if not path:
                points["X"] = (part, "in")
            post = isinstance(part, PostNormBlock)
            points[dot + "H"] = (part.norm_mha, "out") if post else (part, "H")
        elif isinstance(part, FeedForward | SwiGLU):
            points[dot + "pre"] = (getattr(part, "W_gate", part.W_1), "out")
            if isinstance(part, SwiGLU):
                points[dot + "up"] = (part.W_1, "out")
            points[dot + "hidden"] = (part.W_2, "in")
        elif isinstance(part, LanguageModel):
            points[dot + "X0"] = (part.blocks[0], "in")
            points[dot + "logits"] = (part, "out")
            continue
        if not isinstance(part, nn.Linear | nn.Embedding | nn.ModuleList):
            points[path or "out"] = (part, "out")
    return points


def _matching(patterns: str | Iterable[str], points: Mapping[str, _Point]) -> list[str]:
    chosen: dict[str, None] = {}
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        hits = [name for name in points if fnmatchcase(name, pattern)]
        if not hits:
            raise ValueError(f"no activation is called {pattern}{_nearest(pattern, points)}")
        chosen |= dict.fromkeys(hits)
    return list(chosen)


def _nearest(name: str, names: Iterable[str]) -> str:
    folded = {known.casefold(): known for known in names}
    near = difflib.get_close_matches(name.casefold(), folded, n=3, cutoff=0.4)
    return f"; near it: {', '.join(folded[match] for match in near)}" if near else ""


def _within(name: str, place: int, size: int) -> None:
    if not 0 <= place < size:
        raise ValueError(f"{name} must lie in 0 … {size - 1}, not {place}")


def _reader(kept: dict[str, Tensor], name: str, grad: bool) -> Edit:
    def read(tensor: Tensor) -> Tensor:
        if grad and tensor.requires_grad:
            tensor.retain_grad()
        kept[name] = tensor
        return tensor

    return read


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


class _Board:
    """Hold all that is tapped on one module: first the edits, then the readers.

    One board for each module, shared by all `record` and `intervene` blocks that are open, so
    that readers see what the model really went on with.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.edits: dict[str, list[Edit]] = defaultdict(list)
        self.readers: dict[str, list[Edit]] = defaultdict(list)
        self.handles = [
            module.register_forward_pre_hook(self.before, with_kwargs=True),
            module.register_forward_hook(self.after),
        ]
        if isinstance(module, MultiHeadAttention):
            self.own_attend = vars(module).get("attend")
            self.fused = module.attend
            self.heads = (module.n_heads, module.d_head)
            self.strips = module.W_O_slices
            vars(module)["attend"] = self.attend  # the seam, for this one module
            self.handles.append(module.W_O.register_forward_hook(self.addends))
        elif isinstance(module, PreNormBlock):
            self.H_change: Tensor | None = None
            self.handles.append(module.norm_ffn.register_forward_pre_hook(self.stream_H))

    def close(self) -> None:
        for handle in self.handles:
            handle.remove()
        if isinstance(self.module, MultiHeadAttention):
            del vars(self.module)["attend"]
            if self.own_attend is not None:
                vars(self.module)["attend"] = self.own_attend

    def in_use(self) -> bool:
        return any([*self.edits.values(), *self.readers.values()])

    def check_attend(self) -> None:
        if getattr(self.fused, "__func__", None) is not MultiHeadAttention.attend:
            raise ValueError(
                "the scores S and weights A are computed as the package's own attend does, but "
                "this part has another; record or edit Q, K, V or Z, or look inside that attend"
            )

    def edit(self, site: str, tensor: Tensor) -> Tensor:
        for edit in self.edits.get(site, ()):
            tensor = edit(tensor)
        return tensor

    def read(self, site: str, tensor: Tensor) -> Tensor:
        for read in self.readers.get(site, ()):
            read(tensor)
        return tensor

    def both(self, site: str, tensor: Tensor) -> Tensor:
        return self.read(site, self.edit(site, tensor))

    def wants(self, *sites: str) -> bool:
        return any(self.edits.get(site) or self.readers.get(site) for site in sites)

    def before(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if not self.wants("in"):
            return None
        if args:
            return (self.both("in", args[0]), *args[1:]), kwargs
        return args, kwargs | {"X": self.both("in", kwargs["X"])}

    def after(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        if self.edits.get("H") and self.H_change is not None:
            # X' = H + FFN(Norm(H)): the norm has had the edited H, the sum has not.
            output, self.H_change = output + self.H_change, None
        return self.both("out", output)

    def stream_H(self, norm: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        H = self.edit("H", args[0])
        self.H_change = H - args[0] if self.edits.get("H") else None
        return (self.read("H", H),)

    def addends(self, W_O: nn.Linear, args: tuple[Tensor], O: Tensor) -> Tensor:
        if not self.wants("addends"):
            return O
        Z = args[0].unflatten(-1, self.heads).transpose(1, 2)  # type: ignore[no-untyped-call]
        parts = self.both("addends", Z @ self.strips())  # Z_i W_O[i]
        if not self.edits.get("addends"):
            return O
        O = parts.sum(dim=1)
        return O if W_O.bias is None else O + W_O.bias

    def attend(
        self,
        Q: Float[Tensor, "B h n d_head"],
        K: Float[Tensor, "B h n_k d_head"],
        V: Float[Tensor, "B h n_k d_head"],
        mask: Bool[Tensor, "n n_k"] | None,
    ) -> Float[Tensor, "B h n d_head"]:
        Q, K, V = self.both("Q", Q), self.both("K", K), self.both("V", V)
        if not self.wants("S", "A"):
            return self.both("Z", self.fused(Q, K, V, mask))
        S = self.both("S", attention_scores(Q, K))
        if mask is not None:
            S = S.masked_fill(~mask, -math.inf)
        if self.edits.get("S"):
            _checks.mask(S.isneginf().logical_not())
        A = self.edit("A", S.softmax(dim=-1))
        if mask is not None and self.edits.get("A"):
            A = A.masked_fill(~mask, 0)
        return self.both("Z", self.read("A", A) @ V)


_BOARDS: dict[nn.Module, _Board] = {}


@contextmanager
def _tapped(taps: Iterable[_Tap]) -> Iterator[None]:
    taps = list(taps)
    done: list[_Tap] = []
    try:
        for module, kind, site, function in taps:
            if module not in _BOARDS:
                _BOARDS[module] = _Board(module)
            if site in ("S", "A"):
                _BOARDS[module].check_attend()
            getattr(_BOARDS[module], kind)[site].append(function)
            done.append((module, kind, site, function))
        yield
    finally:
        for module, kind, site, function in done:
            getattr(_BOARDS[module], kind)[site].remove(function)
        for module in dict.fromkeys(module for module, *_ in taps):
            if module in _BOARDS and not _BOARDS[module].in_use():
                _BOARDS.pop(module).close()
