import math
import pickle
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from transformer_block import AttentionHead, attention_scores, attention_weights, causal_mask
from transformer_block._causal import CausalMask, is_causal_square

B, n, d_model, d_head = 2, 5, 12, 4


def test_zero_scores_share_the_attention_equally():
    Q = torch.zeros(1, 4, 3)
    A = attention_weights(Q, Q, causal_mask(4))[0]
    expected = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]])
    torch.testing.assert_close(A, expected / expected.sum(-1, keepdim=True))


def weights_are_right(weights):
    """Rows are distributions over keys; hidden keys get 0; the scale is √d_head."""
    Q, K = torch.randn(B, n, d_head), torch.randn(B, n + 2, d_head)
    mask = causal_mask(n, 2)
    A = weights(Q, K, mask)
    torch.testing.assert_close(A.sum(-1), torch.ones(B, n))
    assert (A[:, ~mask] == 0).all()
    expected = F.scaled_dot_product_attention(Q, K, torch.eye(n + 2).expand(B, -1, -1), mask)
    torch.testing.assert_close(A, expected)
    low = torch.tensor([[[-5.0], [-6.0]]])
    one = torch.ones(1, 2, 1)
    torch.testing.assert_close(weights(one, low, causal_mask(2))[0, 0], torch.tensor([1.0, 0.0]))


def test_weights_are_right(double):
    weights_are_right(attention_weights)


def test_mistaken_weights_are_caught(double, caught):
    def no_scale(Q, K, mask):
        return attention_weights(Q * math.sqrt(d_head), K, mask)

    def over_queries(Q, K, mask):
        return attention_scores(Q, K).masked_fill(~mask, -math.inf).softmax(-2)

    def hidden_to_zero(Q, K, mask):
        return attention_scores(Q, K).masked_fill(~mask, 0.0).softmax(-1)

    def times_infinity(Q, K, mask):
        return (attention_scores(Q, K) + (~mask).double() * -math.inf).softmax(-1)

    def opposite_mask(Q, K, mask):
        return attention_scores(Q, K).masked_fill(mask, -math.inf).softmax(-1)

    def one_diagonal_too_far(Q, K, mask):
        return attention_weights(Q, K, torch.ones_like(mask).tril(3))

    caught(
        weights_are_right,
        no_scale, over_queries, hidden_to_zero, times_infinity, opposite_mask, one_diagonal_too_far,
    )  # fmt: skip


@given(n=st.integers(1, 9), n_past=st.integers(0, 7))
def test_mask_lets_each_query_read_itself_and_what_came_before(n, n_past):
    mask = causal_mask(n, n_past)
    for i in range(n):
        assert mask[i].nonzero().flatten().tolist() == list(range(n_past + i + 1))


def test_one_query_reads_all_cached_keys():
    Q, K = torch.zeros(1, 1, 2), torch.zeros(1, 3, 2)
    V = torch.tensor([[[1.0], [2.0], [6.0]]])
    assert (attention_weights(Q, K, causal_mask(1, 2)) @ V).item() == pytest.approx(3)


def test_head_is_the_formula(double):
    head, X = AttentionHead(d_model, d_head), torch.randn(B, n, d_model)
    Q, K, V = (X @ W.weight.T for W in (head.W_Q, head.W_K, head.W_V))
    expected = (Q @ K.transpose(1, 2) / d_head**0.5).softmax(-1) @ V
    torch.testing.assert_close(head(X), expected)


def test_the_future_changes_no_earlier_bit():
    head, X = AttentionHead(d_model, d_head), torch.randn(B, n, d_model)
    changed = X.clone()
    changed[:, 3:] = 7
    assert torch.equal(head(X, causal_mask(n))[:, :3], head(changed, causal_mask(n))[:, :3])
    assert not torch.equal(head(X)[:, :3], head(changed)[:, :3])


def test_gradients_are_right(double):
    head = AttentionHead(3, 2)
    X = torch.randn(1, 4, 3, requires_grad=True)
    assert torch.autograd.gradcheck(lambda X: head(X, causal_mask(4)), X)


def test_a_jacobian_by_vmap_works(double):
    head, X = AttentionHead(3, 2), torch.randn(1, 4, 3)
    J = torch.func.jacrev(head)(X)
    torch.testing.assert_close(J, torch.autograd.functional.jacobian(head, X))


@pytest.mark.usefixtures("as_a_reader")
@pytest.mark.parametrize(
    ("X", "says"),
    [
        (torch.ones(B, n, d_model, dtype=torch.long), "floating-point numbers, not torch.int64"),
        (torch.ones(B, n, d_model + 1), r"d_model = 12 features, but its shape is \[2, 5, 13\]"),
        (torch.full((B, n, d_model), math.nan), "120 values that are not finite"),
        (torch.ones(B, 0, d_model), "holds no token"),
        (torch.tensor(1.0), "last axis"),
    ],
)
def test_bad_input_is_told_clearly(X, says):
    with pytest.raises(ValueError, match=says):
        AttentionHead(d_model, d_head)(X)


@pytest.mark.usefixtures("as_a_reader")
def test_bad_masks_are_told_clearly():
    head, X = AttentionHead(d_model, d_head), torch.randn(B, n, d_model)
    with pytest.raises(ValueError, match="read no key at all"):
        head(X, causal_mask(n).tril(-1))
    with pytest.raises(ValueError, match="must be boolean"):
        head(X, torch.zeros(n, n))


@pytest.mark.usefixtures("as_a_reader")
@pytest.mark.parametrize("size", [0, -1, 2.0, True, None])
def test_bad_sizes_are_told_clearly(size):
    with pytest.raises(ValueError, match="d_head must be a whole number of at least 1"):
        AttentionHead(3, size)


def test_only_an_untouched_square_causal_mask_is_known_as_one():
    mask = causal_mask(3)
    assert is_causal_square(mask, 3, 3)
    assert not is_causal_square(causal_mask(1, 2), 1, 3)  # a kernel would align it at the top left
    assert not is_causal_square(causal_mask(2, 1), 2, 3)
    assert not is_causal_square(mask, 2, 2)
    assert not is_causal_square(None, 3, 3)
    assert not is_causal_square(torch.ones(3, 3, dtype=torch.bool).tril(), 3, 3)
    assert not is_causal_square(causal_mask(3, device=torch.device("meta")).T, 3, 3)
    with torch.inference_mode():
        assert not is_causal_square(causal_mask(3), 3, 3)


@pytest.mark.parametrize(
    "write",
    [
        lambda mask: mask.fill_(True),
        lambda mask: mask.__setitem__((2, 1), False),
        lambda mask: mask[2].fill_(True),  # through a view
        lambda mask: torch.logical_not(mask, out=mask),
    ],
)
def test_a_mask_that_was_written_into_is_an_ordinary_one(write):
    mask = causal_mask(3)
    write(mask)
    assert not is_causal_square(mask, 3, 3)
    assert not is_causal_square(deepcopy(mask), 3, 3)
    assert not is_causal_square(pickle.loads(pickle.dumps(mask)), 3, 3)


@pytest.mark.parametrize(
    "made",
    [
        lambda mask: ~mask,
        lambda mask: mask[:2],
        lambda mask: mask.clone(),
        lambda mask: mask.to("cpu", copy=True),
        deepcopy,
        lambda mask: pickle.loads(pickle.dumps(mask)),
    ],
)
def test_what_is_made_of_a_causal_mask_is_an_ordinary_tensor(made):
    assert isinstance(causal_mask(3), CausalMask)
    assert type(made(causal_mask(3))) is torch.Tensor
