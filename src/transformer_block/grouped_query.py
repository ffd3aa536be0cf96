"""Let several heads read the same keys and values, and let positions turn queries and keys."""

from jaxtyping import Bool, Float
from torch import Tensor, nn

from transformer_block import _checks
from transformer_block.attention import AttentionHead
from transformer_block.multi_head import KeyValueCache, MultiHeadAttention
from transformer_block.rotary import Rotary


class GroupedQueryAttention(MultiHeadAttention):
    """Give h query heads only h_kv heads of keys and values, each shared by h / h_kv of them.

    W_K and W_V are `[d_model, h_kv · d_head]`, and so the cache is h / h_kv times smaller. With
    h_kv = h this is `MultiHeadAttention`; with h_kv = 1 it is called multi-query attention.
    `rotary` turns Q and K by their positions; keys are kept in the cache as they were turned.

    Raises:
        ValueError: if n_kv_heads does not divide n_heads, and as `MultiHeadAttention` does.

    Source: Ainslie et al. (2023), section 2.2.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        n_kv_heads: int,
        d_head: int | None = None,
        *,
        bias: bool = False,
        rotary: Rotary | None = None,
    ) -> None:
        super().__init__(d_model, n_heads, d_head, bias)
        _checks.positive(n_kv_heads=n_kv_heads)
        if n_heads % n_kv_heads:
            raise ValueError(
                f"n_kv_heads must divide n_heads, so that the groups are equal; {n_heads} / "
                f"{n_kv_heads} leaves {n_heads % n_kv_heads}"
            )
        if rotary is not None and rotary.d_head != self.d_head:
            raise ValueError(f"heads have d_head = {self.d_head}, but rotary has {rotary.d_head}")
        self.n_kv_heads, self.rotary = n_kv_heads, rotary
        self.W_K = nn.Linear(d_model, n_kv_heads * self.d_head, bias=bias)
        self.W_V = nn.Linear(d_model, n_kv_heads * self.d_head, bias=bias)

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
        if self.rotary is not None:
            n_past = 0 if cache is None else len(cache)
            Q, K = self.rotary(Q, n_past), self.rotary(K, n_past)
        if cache is not None:
            K, V = cache.extend(K, V)
        Z = self.attend(Q, self.for_each_head(K), self.for_each_head(V), mask)
        concat = Z.transpose(1, 2).flatten(2)
        return self.W_O(concat)

    def split(self, X: Float[Tensor, "B n width"]) -> Float[Tensor, "B heads n d_head"]:
        """Cut the features into strips of d_head: h of them for queries, h_kv for keys, values."""
        return X.view(*X.shape[:-1], -1, self.d_head).transpose(1, 2)

    def for_each_head(self, K: Float[Tensor, "B h_kv n d_head"]) -> Float[Tensor, "B h n d_head"]:
        """Hand each group's keys (or values) to every head of the group."""
        group = self.n_heads // self.n_kv_heads
        return K if group == 1 else K.repeat_interleave(group, dim=1)

    def heads(self) -> list[AttentionHead]:
        """Return the heads one by one, as views of these weights; heads of a group share two.

        Raises:
            ValueError: with rotary positions, which a head alone does not know.
        """
        if self.rotary is not None:
            raise ValueError("these heads turn Q and K by position; an AttentionHead does not")
        group = self.n_heads // self.n_kv_heads
        views = []
        for i in range(self.n_heads):
            head = AttentionHead(self.d_model, self.d_head, bias=self.W_Q.bias is not None)
            for name, strip in (("W_Q", i), ("W_K", i // group), ("W_V", i // group)):
                rows = slice(strip * self.d_head, (strip + 1) * self.d_head)
                for key, whole in getattr(self, name).named_parameters():
                    setattr(getattr(head, name), key, nn.Parameter(whole[rows]))
            views.append(head)
        return views
