"""One head of attention: who reads whom, and what is read."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from transformer_block import _checks
from transformer_block._causal import CausalMask


def causal_mask(
    n: int, n_past: int = 0, device: torch.device | None = None
) -> Bool[Tensor, "n n_k"]:
    """Say which token may read which: True = may read.

    Query i stands at place `n_past + i` and may read the places 0 … `n_past + i`. With keys kept
    from earlier steps the mask is therefore aligned at the bottom right.

    `nn.MultiheadAttention` means the opposite: there True hides.

    >>> causal_mask(3).int().tolist()
    [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    >>> causal_mask(1, n_past=2).int().tolist()
    [[1, 1, 1]]
    """
    _checks.positive(n=n)
    mask = torch.ones(n, n_past + n, dtype=torch.bool, device=device).tril(diagonal=n_past)
    return mask if torch.compiler.is_compiling() else mask.as_subclass(CausalMask)


def attention_scores(
    Q: Float[Tensor, "*heads n_q d_head"], K: Float[Tensor, "*heads n_k d_head"]
) -> Float[Tensor, "*heads n_q n_k"]:
    """Compare every query with every key: S = Q Kᵀ / √d_head.

    Source: Vaswani et al. (2017), section 3.2.1, where d_head is called d_k.
    """
    return Q @ K.mT / math.sqrt(Q.shape[-1])


def attention_weights(
    Q: Float[Tensor, "*heads n_q d_head"],
    K: Float[Tensor, "*heads n_k d_head"],
    mask: Bool[Tensor, "#n_q n_k"] | None = None,
) -> Float[Tensor, "*heads n_q n_k"]:
    """Turn scores into one distribution over the keys for every query: A = softmax(S).

    The softmax runs over the keys (the last axis), so every row sums to 1. A hidden key has its
    score set to −∞, not to a large negative number, and gets the weight 0 exactly.

    Raises:
        ValueError: if the mask leaves a query nothing to read.

    Source: Vaswani et al. (2017), equation 1.
    """
    S = attention_scores(Q, K)
    _checks.mask(mask)
    if mask is not None:
        S = S.masked_fill(~mask, -math.inf)
    return S.softmax(dim=-1)


class AttentionHead(nn.Module):
    """Read the other tokens once: Z = softmax(Q Kᵀ / √d_head) V.

    Q = X W_Q, K = X W_K, V = X W_V. `nn.Linear` stores a matrix transposed, `[d_head, d_model]`.

    Raises:
        ValueError: for sizes below 1, or an X that is not a finite `[B, n, d_model]`.

    Source: Vaswani et al. (2017), section 3.2.1.
    """

    def __init__(self, d_model: int, d_head: int, bias: bool = False) -> None:
        super().__init__()
        _checks.positive(d_model=d_model, d_head=d_head)
        self.d_model = d_model
        self.W_Q = nn.Linear(d_model, d_head, bias=bias)
        self.W_K = nn.Linear(d_model, d_head, bias=bias)
        self.W_V = nn.Linear(d_model, d_head, bias=bias)

    def forward(
        self, X: Float[Tensor, "B n d_model"], mask: Bool[Tensor, "n n"] | None = None
    ) -> Float[Tensor, "B n d_head"]:
        """Return each token's weighted sum of the values it may read."""
        _checks.stream(X, self.d_model)
        Q, K, V = self.W_Q(X), self.W_K(X), self.W_V(X)
        A = attention_weights(Q, K, mask)
        return A @ V
