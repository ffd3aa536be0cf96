import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

from transformer_block import KeyValueCache, MultiHeadAttention, attention_weights, causal_mask

B, n, d_model, h, d_head = 2, 5, 12, 3, 4
MASKS = {"no mask": None, "causal": causal_mask(n)}


def by_loop(mha, X, mask):
    """Concatenate the heads one by one, then multiply by W_O."""
    return torch.cat([head(X, mask) for head in mha.heads()], dim=-1) @ mha.W_O.weight.T


def by_addends(mha, X, mask):
    """Let each head write through its own strip of W_O."""
    return sum(head(X, mask) @ W for head, W in zip(mha.heads(), mha.W_O_slices(), strict=True))


def by_torch(mha, X, mask):
    """Ask nn.MultiheadAttention, with the same weights (its mask says what to hide)."""
    theirs = nn.MultiheadAttention(mha.d_model, mha.n_heads, bias=False, batch_first=True)
    qkv = torch.cat([mha.W_Q.weight, mha.W_K.weight, mha.W_V.weight])
    theirs.load_state_dict({"in_proj_weight": qkv, "out_proj.weight": mha.W_O.weight})
    hide = None if mask is None else ~mask
    return theirs(X, X, X, attn_mask=hide, need_weights=False)[0]


def all_forms_agree(form):
    mha, X = MultiHeadAttention(d_model, h), torch.randn(B, n, d_model)
    for mask in MASKS.values():
        expected = form(mha, X, mask)
        for other in (type(mha).__call__, by_loop, by_addends, by_torch):
            torch.testing.assert_close(other(mha, X, mask), expected)


def test_the_four_forms_are_one(double):
    all_forms_agree(MultiHeadAttention.__call__)


def test_mistaken_forms_are_caught(double, caught):
    def per_head(mistake):
        def form(mha, X, mask):
            split = [mha.split(W(X)) for W in (mha.W_Q, mha.W_K, mha.W_V)]
            return mistake(mha, *split, mask)

        return form

    def scale_by_width(mha, Q, K, V, mask):
        A = attention_weights(Q * math.sqrt(d_head / d_model), K, mask)
        return mha.W_O((A @ V).transpose(1, 2).flatten(2))

    def no_transpose(mha, Q, K, V, mask):
        return mha.W_O((attention_weights(Q, K, mask) @ V).reshape(B, n, d_model))

    def no_W_O(mha, Q, K, V, mask):
        return (attention_weights(Q, K, mask) @ V).transpose(1, 2).flatten(2)

    def mask_lost(mha, Q, K, V, mask):
        return mha.W_O((attention_weights(Q, K) @ V).transpose(1, 2).flatten(2))

    def heads_swapped(mha, X, mask):
        heads = mha.heads()[::-1]
        return torch.cat([head(X, mask) for head in heads], -1) @ mha.W_O.weight.T

    caught(all_forms_agree, heads_swapped)
    caught(all_forms_agree, *map(per_head, (scale_by_width, no_transpose, no_W_O, mask_lost)))


@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 4), st.integers(1, 5))
def test_the_forms_agree_at_any_size(B, n, h, d_head):
    assume(len({B, n, h, d_head}) > 1)
    mha = MultiHeadAttention(h * d_head, h).double()
    X = torch.randn(B, n, h * d_head, dtype=torch.float64)
    torch.testing.assert_close(mha(X, causal_mask(n)), by_loop(mha, X, causal_mask(n)))


def test_biases_travel_with_the_heads(double):
    mha, X = MultiHeadAttention(d_model, h, bias=True), torch.randn(B, n, d_model)
    concat = torch.cat([head(X) for head in mha.heads()], dim=-1)
    torch.testing.assert_close(mha.W_O(concat), mha(X))


def test_W_O_comes_back_to_d_model_from_any_width(double):
    mha, X = MultiHeadAttention(d_model, h, d_head=7), torch.randn(B, n, d_model)
    assert mha.W_O.weight.shape == (d_model, 21)
    assert mha(X).shape == X.shape
    torch.testing.assert_close(mha(X), by_addends(mha, X, None))


def test_heads_are_views_not_copies():
    mha = MultiHeadAttention(d_model, h)
    with torch.no_grad():
        mha.heads()[1].W_V.weight.fill_(7)
    assert (mha.W_V.weight[4:8] == 7).all()
    assert (mha.W_V.weight[:4] != 7).all()


def test_the_future_changes_no_earlier_bit():
    mha, X = MultiHeadAttention(d_model, h), torch.randn(B, n, d_model)
    changed = X.clone()
    changed[:, 2:] = 7
    assert torch.equal(mha(X, causal_mask(n))[:, :2], mha(changed, causal_mask(n))[:, :2])


def test_batch_mates_do_not_matter():
    mha, X = MultiHeadAttention(d_model, h), torch.randn(3, n, d_model)
    for b in range(3):
        torch.testing.assert_close(mha(X)[b], mha(X[b : b + 1])[0])


@pytest.mark.parametrize("steps", [[1] * n, [2, 3], [3, 1, 1], [4, 1]])
def test_a_cache_changes_nothing(steps, double):
    mha, X, cache = MultiHeadAttention(d_model, h), torch.randn(B, n, d_model), KeyValueCache()
    parts = []
    for x in X.split(steps, dim=1):
        parts.append(mha(x, causal_mask(x.shape[1], len(cache)), cache))
    assert len(cache) == n
    torch.testing.assert_close(torch.cat(parts, dim=1), mha(X, causal_mask(n)))


def test_gradients_are_right(double):
    mha = MultiHeadAttention(6, 2)
    X = torch.randn(1, 3, 6, requires_grad=True)
    assert torch.autograd.gradcheck(lambda X: mha(X, causal_mask(3)), X)


@pytest.mark.usefixtures("as_a_reader")
@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ((10, 3), "n_heads must divide d_model; 10 / 3 leaves 1; try 2 or 5"),
        ((512, 7), "512 / 7 leaves 1; try 4 or 8"),
        ((7, 2), "7 / 2 leaves 1; try 7"),
        ((12, 0), "n_heads must be a whole number of at least 1, not 0"),
        ((12, 3, 0), "d_head must be a whole number of at least 1, not 0"),
    ],
)
def test_bad_sizes_are_told_clearly(sizes, says):
    with pytest.raises(ValueError, match=says):
        MultiHeadAttention(*sizes)


@pytest.mark.usefixtures("as_a_reader")
def test_bad_input_is_told_clearly():
    mha = MultiHeadAttention(d_model, h)
    with pytest.raises(ValueError, match="d_model = 12 features"):
        mha(torch.ones(B, n, 13))
    with pytest.raises(ValueError, match="not finite"):
        mha(torch.full((B, n, d_model), math.inf))
    with pytest.raises(ValueError, match="read no key"):
        mha(torch.ones(B, n, d_model), torch.zeros(n, n, dtype=torch.bool))
    cache = KeyValueCache()
    mha(torch.ones(B, n, d_model), None, cache)
    with pytest.raises(ValueError, match=r"holds a batch of 2, not of 3; .* model.new_caches"):
        mha(torch.ones(3, 1, d_model), None, cache)


def kernel_calls(monkeypatch):
    """Listen to what the fused kernel is told."""
    told, fused = [], F.scaled_dot_product_attention

    def listening(*args, **settings):
        told.append("causal" if settings.get("is_causal") else settings["attn_mask"])
        return fused(*args, **settings)

    monkeypatch.setattr(F, "scaled_dot_product_attention", listening)
    return told


def test_the_fused_kernel_is_told_that_it_is_causal_where_it_is(monkeypatch, double):
    mha, X, told = MultiHeadAttention(d_model, h), torch.randn(B, n, d_model), []
    told = kernel_calls(monkeypatch)
    cut = causal_mask(n)
    cut[3, 1] = False
    for mask in (causal_mask(n), causal_mask(n).clone(), cut, None):
        torch.testing.assert_close(mha(X, mask), by_loop(mha, X, mask))
    assert told[0] == "causal"
    assert told[1].shape == told[2].shape == (n, n)
    assert told[3] is None
    cache = KeyValueCache()
    for x in X.split([2, 1, 2], dim=1):
        mha(x, causal_mask(x.shape[1], len(cache)), cache)
    assert told[4] == "causal"
    assert [mask.shape for mask in told[5:]] == [(1, 3), (2, 5)]


def test_one_query_of_three_keys_is_aligned_at_the_last(double):
    Q, K, V = torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 3, 4), torch.tensor([1.0, 2, 6])
    V = V.view(1, 1, 3, 1).expand(1, 1, 3, 4)
    Z = MultiHeadAttention(4, 1).attend(Q, K, V, causal_mask(1, 2))
    assert Z[0, 0, 0, 0].item() == pytest.approx(3)  # top left, it would be 1


def test_a_cache_that_was_half_filled_by_hand_begins_anew():
    cache = KeyValueCache()
    cache.K = torch.zeros(B, h, 2, d_head)  # keys alone: nothing to read
    K = V = torch.ones(B, h, 1, d_head)
    assert cache.extend(K, V)[1].shape == (B, h, 1, d_head)


def test_biases_are_left_out_unless_asked_for():
    assert {name for name, _ in MultiHeadAttention(d_model, h).named_parameters()} == {
        f"W_{letter}.weight" for letter in "QKVO"
    }
    assert len(list(MultiHeadAttention(d_model, h, bias=True).parameters())) == 8
