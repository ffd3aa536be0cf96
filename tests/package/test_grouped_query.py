import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transformer_block.activations import record
from transformer_block.attention import attention_weights, causal_mask
from transformer_block.grouped_query import GroupedQueryAttention
from transformer_block.multi_head import KeyValueCache, MultiHeadAttention
from transformer_block.rotary import Rotary

B, n, d_model, h, h_kv, d_head = 2, 5, 12, 6, 2, 4  # h · d_head is not d_model


def grouped(**how):
    rotary = Rotary(d_head, 50.0) if how.pop("turned", False) else None
    return GroupedQueryAttention(d_model, h, h_kv, d_head, rotary=rotary, **how)


def by_loop(mha, X, mask, *, group_of=lambda i: i // (h // h_kv), turn=None, n_past=0):
    """Let query head i read the keys and values of its group, one head after the other."""
    turn = turn or (lambda rotary, X, n_past: rotary(X, n_past) if rotary else X)
    Q, K, V = (W(X).unflatten(-1, (-1, d_head)) for W in (mha.W_Q, mha.W_K, mha.W_V))
    reports = []
    for i in range(h):
        q, k = (
            turn(mha.rotary, each[:, :, strip], n_past)
            for each, strip in ((Q, i), (K, group_of(i)))
        )
        reports.append(attention_weights(q, k, mask) @ V[:, :, group_of(i)])
    return mha.W_O(torch.cat(reports, dim=-1))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_each_head_reads_its_group_and_mistakes_are_caught(turned, bias, double, caught):
    mha, X = grouped(bias=bias, turned=turned), torch.randn(B, n, d_model)

    def proof(form):
        for mask in (None, causal_mask(n)):
            torch.testing.assert_close(form(mha, X, mask), mha(X, mask))

    proof(by_loop)
    caught(proof, lambda *given: by_loop(*given, group_of=lambda i: i % h_kv))  # tiled
    if turned:

        def interleaved(rotary, X, n_past):
            order = torch.arange(d_head).view(2, -1).T.flatten()  # neighbours become the halves
            return rotary(X[..., order.argsort()], n_past)[..., order]

        caught(
            proof,
            lambda *given: by_loop(*given, turn=interleaved),
            lambda *given: by_loop(*given, turn=lambda rotary, X, n_past: X),
            lambda *given: by_loop(*given, turn=lambda r, X, n_past: r(r(X, n_past), n_past)),
        )


@pytest.mark.parametrize("bias", [False, True])
def test_with_as_many_key_heads_it_is_multi_head_attention(bias):
    ours, X = GroupedQueryAttention(d_model, h, h, bias=bias), torch.randn(B, n, d_model)
    plain = MultiHeadAttention(d_model, h, bias=bias)
    plain.load_state_dict(ours.state_dict())
    for mask in (None, causal_mask(n)):
        assert torch.equal(ours(X, mask), plain(X, mask))


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4))
def test_it_is_multi_head_attention_whose_groups_repeat_their_keys(h_kv, group, d_head, n):
    mha = GroupedQueryAttention(d_model, h_kv * group, h_kv, d_head).double()
    plain = MultiHeadAttention(d_model, h_kv * group, d_head).double()
    weights = mha.state_dict()
    for name in ("W_K.weight", "W_V.weight"):
        strips = weights[name].unflatten(0, (h_kv, d_head))
        weights[name] = torch.stack([s for s in strips for _ in range(group)]).flatten(0, 1)
    plain.load_state_dict(weights)
    X = torch.randn(1, n, d_model, dtype=torch.float64)
    torch.testing.assert_close(mha(X, causal_mask(n)), plain(X, causal_mask(n)))


def in_pieces(mha, X, steps, past=len):
    cache, parts = KeyValueCache(), []
    for x in X.split(steps, dim=1):
        parts.append(mha(x, causal_mask(x.shape[1], past(cache)), cache))
    return torch.cat(parts, dim=1), cache


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("steps", [[1] * n, [2, 3], [3, 1, 1], [4, 1]])
def test_a_cache_changes_nothing_and_is_as_small_as_said(steps, turned, double):
    mha, X = grouped(turned=turned), torch.randn(B, n, d_model)
    whole, cache = in_pieces(mha, X, steps)
    torch.testing.assert_close(whole, mha(X, causal_mask(n)), rtol=1e-6, atol=1e-7)
    assert cache.K.shape == cache.V.shape == (B, h_kv, n, d_head)


def test_a_cache_turned_wrongly_is_caught(double, caught):
    X = torch.randn(B, n, d_model)

    class NoOffset(Rotary):
        def __call__(self, X, n_past=0):
            return super().__call__(X)

    class TurnedAgain(KeyValueCache):
        """Turn kept keys, which were turned when they came, at each reading once more."""

        def extend(self, K, V):
            K, V = super().extend(K, V)
            return Rotary(d_head, 50.0)(K), V

    def proof(rotary_and_cache):
        rotary, cache = rotary_and_cache
        mha = GroupedQueryAttention(d_model, h, h_kv, d_head, rotary=rotary)
        parts = [mha(x, causal_mask(x.shape[1], len(cache)), cache) for x in X.split([3, 2], 1)]
        torch.testing.assert_close(torch.cat(parts, 1), by_loop(mha, X, causal_mask(n)))

    proof((Rotary(d_head, 50.0), KeyValueCache()))
    caught(
        proof,
        (NoOffset(d_head, 50.0), KeyValueCache()),
        (Rotary(d_head, 50.0), TurnedAgain()),
    )


@pytest.mark.parametrize("turned", [False, True])
def test_it_can_be_looked_into(turned, double):
    mha, X = grouped(turned=turned, bias=True), torch.randn(B, n, d_model)
    with record(mha) as run:
        O = mha(X, causal_mask(n))
    assert run["Q"].shape == run["K"].shape == run["V"].shape == (B, h, n, d_head)
    torch.testing.assert_close(run["A"].sum(-1), torch.ones(B, h, n))
    torch.testing.assert_close(run["A"], attention_weights(run["Q"], run["K"], causal_mask(n)))
    torch.testing.assert_close(run["addends"].sum(1) + mha.W_O.bias, O)
    torch.testing.assert_close(mha(X, causal_mask(n)), O)


@pytest.mark.parametrize("bias", [False, True])
def test_heads_are_views_and_those_of_a_group_share_theirs(bias, double):
    mha, X = grouped(bias=bias), torch.randn(B, n, d_model)
    heads = mha.heads()
    concat = torch.cat([head(X, causal_mask(n)) for head in heads], dim=-1)
    torch.testing.assert_close(mha.W_O(concat), mha(X, causal_mask(n)))
    with torch.no_grad():
        heads[4].W_K.weight.fill_(7)  # heads 3, 4 and 5 are the second group
    assert (heads[5].W_K.weight == 7).all()
    assert (heads[2].W_K.weight != 7).all()
    assert (mha.W_K.weight[d_head:] == 7).all()


def test_gradients_are_right(double):
    mha = GroupedQueryAttention(4, 4, 2, 2)
    X = torch.randn(1, 3, 4, requires_grad=True)
    assert torch.autograd.gradcheck(lambda X: mha(X, causal_mask(3)), X)


@pytest.mark.usefixtures("as_a_reader")
@pytest.mark.parametrize(
    ("call", "rule"),
    [
        (lambda: GroupedQueryAttention(12, 6, 4), "6 / 4 leaves 2"),
        (lambda: GroupedQueryAttention(12, 2, 4), "2 / 4 leaves 2"),
        (lambda: GroupedQueryAttention(12, 6, 0), "n_kv_heads must be a whole number"),
        (lambda: GroupedQueryAttention(10, 3, 1), "10 / 3 leaves 1; try 2 or 5"),
        (
            lambda: GroupedQueryAttention(12, 6, 2, 4, rotary=Rotary(2)),
            "heads have d_head = 4, but rotary has 2",
        ),
        (lambda: grouped(turned=True).heads(), "turn Q and K by position"),
        (lambda: grouped()(torch.ones(B, n, 13)), "d_model = 12 features"),
        (
            lambda: grouped()(torch.ones(B, n, 12), torch.zeros(n, n, dtype=torch.bool)),
            "read no key",
        ),
    ],
)
def test_bad_input_is_told_clearly(call, rule):
    with pytest.raises(ValueError, match=rule):
        call()
