"""What a causal mask knows of itself, so that a fused kernel can skip what it hides."""

from typing import Any, SupportsIndex

import torch
from torch import Tensor


class CausalMask(Tensor):
    """A mask that is known to be causal, so that a kernel may skip what it hides.

    Whatever is made of it is an ordinary tensor.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # as torch's own Parameter has it

    def __deepcopy__(self, memo: object) -> Tensor:
        return self.clone()

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return self.clone().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]  # torch's


def is_causal_square(mask: Tensor | None, n_q: int, n_k: int) -> bool:
    """Say whether a mask is one of `causal_mask`, never written into, with no earlier keys.

    Only then does "causal" mean the same to a fused kernel, which aligns at the top left.
    """
    return (
        not torch.compiler.is_compiling()
        and isinstance(mask, CausalMask)
        and mask.shape == (n_q, n_k) == (n_k, n_q)
        and not mask.is_inference()  # those do not count how often they were written into
        and mask._version == 0
    )
