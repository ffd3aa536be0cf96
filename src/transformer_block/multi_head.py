"""Several heads side by side, and W_O, which mixes what they found."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from transformer_block import _checks
from transformer_block._causal import is_causal_square
from transformer_block.attention import AttentionHead


class KeyValueCache:
    """Keep the keys and values of one layer, so that a new token need not recompute them."""

    def __init__(self) -> None:
        self.K: Tensor | None = None
        self.V: Tensor | None = None

    def __len__(self) -> int:
        """Return how many tokens are kept."""
        return 0 if self.K is None else self.K.shape[-2]

    def extend(
        self, K: Float[Tensor, "B h n d_head"], V: Float[Tensor, "B h n d_head"]
    ) -> tuple[Float[Tensor, "B h n_k d_head"], Float[Tensor, "B h n_k d_head"]]:
        """Append the new tokens' keys and values, and return all there are.

        Raises:
            ValueError: if the batch is not the one the cache was begun with.
        """
        if self.K is not None and self.V is not None:
            if len(K) != len(self.K):
                raise ValueError(
                    f"the cache holds a batch of {len(self.K)}, not of {len(K)}; "
                    "begin a new one with model.new_caches()"
                )
            K, V = torch.cat([self.K, K], dim=-2), torch.cat([self.V, V], dim=-2)
        self.K, self.V = K, V
        return K, V


class MultiHeadAttention(nn.Module):
    """Let h heads read at once, then mix their reports: O = Concat(Z_1 … Z_h) W_O.

    The heads' matrices stand side by side in one W_Q, W_K and W_V of width h · d_head; d_head is
    d_model / h unless given. W_O is `[h · d_head, d_model]` (stored transposed by `nn.Linear`).

    `attend` is the one step from Q, K, V to Z; it is an attribute so that `record` can look
    inside. `mask` means True = may read; None lets every token read every token.

    Raises:
        ValueError: if n_heads does not divide d_model (and no d_head is given), or for an X that
            is not a finite `[B, n, d_model]`.

    Source: Vaswani et al. (2017), section 3.2.2.
    """

    def __init__(
        self, d_model: int, n_heads: int, d_head: int | None = None, bias: bool = False
    ) -> None:
        super().__init__()
        self.d_head = _checks.divides(n_heads, d_model) if d_head is None else d_head
        _checks.positive(d_model=d_model, n_heads=n_heads, d_head=self.d_head)
        self.d_model, self.n_heads = d_model, n_heads
        width = n_heads * self.d_head
        self.W_Q = nn.Linear(d_model, width, bias=bias)
        self.W_K = nn.Linear(d_model, width, bias=bias)
        self.W_V = nn.Linear(d_model, width, bias=bias)
        self.W_O = nn.Linear(width, d_model, bias=bias)

    def forward(
        self,
        X: Float[Tensor, "B n d_model"],
        mask: Bool[Tensor, "n n_k"] | None = None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "B n d_model"]:
        """Return what the heads together add to each token."""
        _checks.stream(X, self.d_model)
        _checks.mask(mask)
        Q, K, V = self.split(self.W_Q(X)), self.split(self.W_K(X)), self.split(self.W_V(X))
        if cache is not None:
            K, V = cache.extend(K, V)
        Z = self.attend(Q, K, V, mask)
        concat = Z.transpose(1, 2).flatten(2)
        return self.W_O(concat)

    def split(self, X: Float[Tensor, "B n width"]) -> Float[Tensor, "B h n d_head"]:
        """Cut the features into h strips of d_head, one for each head."""
        return X.view(*X.shape[:-1], self.n_heads, self.d_head).transpose(1, 2)

    def attend(
        self,
        Q: Float[Tensor, "B h n d_head"],
        K: Float[Tensor, "B h n_k d_head"],
        V: Float[Tensor, "B h n_k d_head"],
        mask: Bool[Tensor, "n n_k"] | None,
    ) -> Float[Tensor, "B h n d_head"]:
        """Return Z = softmax(Q Kᵀ / √d_head) V of every head, fused."""
        if is_causal_square(mask, Q.shape[-2], K.shape[-2]):
            return F.scaled_dot_product_attention(Q, K, V, is_causal=True)
        return F.scaled_dot_product_attention(Q, K, V, attn_mask=mask)

    def heads(self) -> list[AttentionHead]:
        """Return the heads one by one, as views of these weights."""
        views = []
        for start, stop in pairwise(range(0, (self.n_heads + 1) * self.d_head, self.d_head)):
            head = AttentionHead(self.d_model, self.d_head, bias=self.W_Q.bias is not None)
            for name in ("W_Q", "W_K", "W_V"):
                for key, whole in getattr(self, name).named_parameters():
                    setattr(getattr(head, name), key, nn.Parameter(whole[start:stop]))
            views.append(head)
        return views

    def W_O_slices(self) -> Float[Tensor, "h d_head d_model"]:
        """Return W_O cut into the strip that each head writes through: O = Σ_i Z_i W_O[i]."""
        return self.W_O.weight.T.view(self.n_heads, self.d_head, self.d_model)
