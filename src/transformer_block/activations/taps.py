"""How activations are reached: names → (module, site), and one board for each tapped module."""

import difflib
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, SupportsIndex, cast

from jaxtyping import Bool, Float
from torch import Tensor, nn

from transformer_block import _checks
from transformer_block.attention import attention_scores
from transformer_block.block import PostNormBlock, PreNormBlock
from transformer_block.feed_forward import FeedForward, SwiGLU
from transformer_block.language_model import LanguageModel
from transformer_block.multi_head import MultiHeadAttention

Edit = Callable[[Tensor], Tensor]
Point = tuple[nn.Module, str]
Tap = tuple[nn.Module, str, str, Edit]  # module, "edits" or "readers", site, function


def points(model: nn.Module) -> dict[str, Point]:
    """Say where each name is to be found."""
    found: dict[str, Point] = {}
    for path, part in model.named_modules():
        dot = f"{path}." if path else ""
        if isinstance(part, MultiHeadAttention):
            found |= {dot + site: (part, site) for site in ("Q", "K", "V", "S", "A", "Z")}
            found[dot + "concat"] = (part.W_O, "in")
            found[dot + "addends"] = (part, "addends")
        elif isinstance(part, PreNormBlock):
            if not path:
                found["X"] = (part, "in")
            post = isinstance(part, PostNormBlock)
            found[dot + "H"] = (part.norm_mha, "out") if post else (part, "H")
        elif isinstance(part, FeedForward | SwiGLU):
            found |= {dot + site: (getattr(part, W), "out") for site, W in part.ups.items()}
            found[dot + "hidden"] = (part.W_2, "in")
        elif isinstance(part, LanguageModel):
            found[dot + "X0"] = (part.blocks[0], "in")
            found[dot + "logits"] = (part, "out")
            continue
        if not isinstance(part, nn.Linear | nn.Embedding | nn.ModuleList):
            found[path or "out"] = (part, "out")
    return found


def matching(patterns: str | Iterable[str], known: Mapping[str, Point]) -> list[str]:
    """Return the known names that fit a pattern; ValueError, with those near it, if none does."""
    chosen: dict[str, None] = {}
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        hits = [name for name in known if fnmatchcase(name, pattern)]
        if not hits:
            raise ValueError(f"no activation is called {pattern}{nearest(pattern, known)}")
        chosen |= dict.fromkeys(hits)
    return list(chosen)


def nearest(name: str, names: Iterable[str]) -> str:
    """Return a hint at the names most like this one, or nothing."""
    folded = {known.casefold(): known for known in names}
    near = difflib.get_close_matches(name.casefold(), folded, n=3, cutoff=0.4)
    return f"; near it: {', '.join(folded[match] for match in near)}" if near else ""


class _Board:
    """Hold all that is tapped on one module: first the edits, then the readers.

    One board for each module, shared by all `record` and `intervene` blocks that are open, so
    that readers see what the model really went on with.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.edits: dict[str, list[Edit]] = defaultdict(list)
        self.readers: dict[str, list[Edit]] = defaultdict(list)
        self.touched = [module]  # all that carry a hook of this board
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
            self.touched.append(module.W_O)
            self.handles.append(module.W_O.register_forward_hook(self.addends))
        elif isinstance(module, PreNormBlock):
            self.H_change: Tensor | None = None
            self.touched.append(module.norm_ffn)
            self.handles.append(module.norm_ffn.register_forward_pre_hook(self.stream_H))

        for part in self.touched:
            vars(part)["__reduce_ex__"] = partial(_reduce_untapped, part)

    def close(self) -> None:
        for handle in self.handles:
            handle.remove()
        if isinstance(self.module, MultiHeadAttention):
            del vars(self.module)["attend"]
            if self.own_attend is not None:
                vars(self.module)["attend"] = self.own_attend
        for part in self.touched:
            if not any(part in board.touched for board in _BOARDS.values()):
                del vars(part)["__reduce_ex__"]

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
            _checks.readable(S.isneginf().logical_not())
        A = self.edit("A", S.softmax(dim=-1))
        if mask is not None and self.edits.get("A"):
            A = A.masked_fill(~mask, 0)
        return self.both("Z", self.read("A", A) @ V)


_BOARDS: dict[nn.Module, _Board] = {}


def _reduce_untapped(part: nn.Module, protocol: SupportsIndex) -> tuple[Any, ...]:
    """Let `deepcopy` and `pickle` see a tapped part as it is when nothing is tapped."""
    make, args, whole, *rest = cast(tuple[Any, ...], type(part).__reduce_ex__(part, protocol))
    state = {name: value for name, value in whole.items() if name != "__reduce_ex__"}
    for hooks in ("_forward_hooks", "_forward_pre_hooks"):
        state[hooks] = type(state[hooks])(
            (key, hook)
            for key, hook in state[hooks].items()
            if not isinstance(getattr(hook, "__self__", None), _Board)
        )
    kept = state["_forward_pre_hooks"]
    with_kwargs = state["_forward_pre_hooks_with_kwargs"]
    state["_forward_pre_hooks_with_kwargs"] = type(with_kwargs)(
        (key, flag) for key, flag in with_kwargs.items() if key in kept
    )
    board = getattr(state.get("attend"), "__self__", None)
    if isinstance(board, _Board):
        del state["attend"]
        if board.own_attend is not None:
            state["attend"] = board.own_attend
    return make, args, state, *rest


@contextmanager
def tapped(taps: Iterable[Tap]) -> Iterator[None]:
    """Keep these taps in place inside the `with` block, and leave no trace after it."""
    taps = list(taps)
    done: list[Tap] = []
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
