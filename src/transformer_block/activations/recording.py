"""Look at every activation of a run by its name."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from transformer_block.activations.taps import Edit, matching, nearest, points, tapped


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
        raise KeyError(f"{name} is not recorded here{nearest(name, self._asked)}")

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

    >>> from transformer_block.multi_head import MultiHeadAttention
    >>> mha = MultiHeadAttention(d_model=12, n_heads=3)
    >>> with record(mha, ["A", "add*"]) as run:
    ...     O = mha(torch.zeros(2, 5, 12))
    >>> run
    A [2, 3, 5, 5]
    addends [2, 3, 5, 12]
    """
    known = points(model)
    chosen = matching("*" if names is None else names, known)
    run = Run(chosen)
    taps = []
    for name in chosen:
        part, site = known[name]
        taps.append((part, "readers", site, _reader(run._kept, name, grad)))
        if grad and site == "addends":  # makes O pass through them, else no gradient reaches them
            taps.append((part, "edits", site, torch.clone))
    with tapped(taps):
        yield run


def traced_shapes(model: nn.Module, *inputs: Any) -> dict[str, tuple[int, ...]]:
    """Run the model once and return the shape of every activation, by name, in order."""
    with torch.no_grad(), record(model) as run:
        model(*inputs)
    return {name: tuple(tensor.shape) for name, tensor in run.items()}


def _reader(kept: dict[str, Tensor], name: str, grad: bool) -> Edit:
    def read(tensor: Tensor) -> Tensor:
        if grad and tensor.requires_grad:
            tensor.retain_grad()
        kept[name] = tensor
        return tensor

    return read
