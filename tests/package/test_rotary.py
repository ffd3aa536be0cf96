import math
from copy import deepcopy

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from transformer_block.rotary import Rotary, Stretch, stretched

B, h, n, d_head, theta = 2, 3, 5, 8, 50.0
# The angles are float32 numbers, as in the published models.
CLOSE = {"rtol": 0.0, "atol": 2e-6}


def by_pairs(X, n_past=0, *, pairs=lambda i, half: (i, i + half), turn=1):
    """Turn each pair of each vector by its own angle, one cosine and one sine at a time."""
    half = X.shape[-1] // 2
    turned = X.clone()
    for m in range(X.shape[-2]):
        for i in range(half):
            a, b = pairs(i, half)
            angle = turn * (n_past + m) * theta ** (-2 * i / X.shape[-1])
            x, y = X[..., m, a], X[..., m, b]
            turned[..., m, a] = x * math.cos(angle) - y * math.sin(angle)
            turned[..., m, b] = x * math.sin(angle) + y * math.cos(angle)
    return turned


def test_the_three_forms_are_one_and_mistaken_ones_are_caught(double, caught):
    rotary, X = Rotary(d_head, theta), torch.randn(B, h, n, d_head)

    def proof(form):
        for n_past in (0, 4):
            torch.testing.assert_close(form(X, n_past), rotary(X, n_past), **CLOSE)

    proof(by_pairs)
    proof(rotary.by_hand)
    caught(
        proof,
        lambda X, n_past: by_pairs(X, n_past, pairs=lambda i, half: (2 * i, 2 * i + 1)),
        lambda X, n_past: by_pairs(X, n_past, turn=-1),
        lambda X, n_past: by_pairs(X),
        lambda X, n_past: Rotary(d_head, 2 * theta)(X, n_past),
        lambda X, n_past: rotary(rotary(X, n_past), n_past),
    )


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 60))
def test_a_score_depends_on_the_distance_only(m, k, further):
    q, key = torch.randn(2, 1, d_head, dtype=torch.float64)
    rotary = Rotary(d_head, theta)

    def score(i, j):
        return (rotary(q, i) @ rotary(key, j).T).item()

    assert score(m + further, k + further) == pytest.approx(score(m, k), abs=1e-4)


@given(st.integers(1, 60))
def test_a_score_does_depend_on_the_distance(further):
    q = torch.ones(1, d_head, dtype=torch.float64)
    rotary = Rotary(d_head, theta)
    assert (q @ rotary(q, further).T).item() < d_head - 0.1  # at the distance 0 it is d_head


def test_a_turn_changes_no_length_and_position_0_is_not_turned(double):
    rotary, X = Rotary(d_head, theta), torch.randn(B, h, n, d_head)
    torch.testing.assert_close(rotary(X, 7).norm(dim=-1), X.norm(dim=-1), **CLOSE)
    assert torch.equal(rotary(X)[..., 0, :], X[..., 0, :])


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 9), st.booleans())
def test_pieces_are_turned_as_the_whole(left, right, n_past, backwards):
    assume(left != right)
    rotary, X = Rotary(d_head, theta), torch.randn(1, left + right, d_head)
    first, last = X.split([left, right], dim=1)
    calls = [(first, n_past), (last, n_past + left)]
    turned = [rotary(*call) for call in calls[:: -1 if backwards else 1]]  # the tables grow
    whole = torch.cat(turned[:: -1 if backwards else 1], dim=1)
    assert torch.equal(whole, Rotary(d_head, theta)(X, n_past))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_tables_follow_the_dtype(dtype):
    rotary, X = Rotary(d_head), torch.randn(n, d_head)
    rotary(X)
    turned = rotary(X.to(dtype))
    assert turned.dtype == dtype
    assert rotary.by_hand(X.to(torch.float32)).dtype == torch.float32
    torch.testing.assert_close(turned.float(), rotary(X), rtol=0, atol=0.05)


def test_a_model_is_moved_from_the_meta_device():
    rotary = Rotary(d_head)
    with torch.device("meta"):
        assert rotary(torch.empty(n, d_head)).is_meta
        assert not Rotary(d_head).frequencies.is_meta
    assert not rotary(torch.ones(n, d_head)).is_meta


def test_a_copy_turns_alike():
    rotary, X = Rotary(d_head), torch.randn(n, d_head)
    assert torch.equal(deepcopy(rotary)(X), rotary(X))


# ---- stretched for longer texts

STRETCH = Stretch(factor=8.0, low=1.0, high=4.0, n_trained=100)


def test_fast_turns_are_kept_slow_ones_slowed_and_those_between_mixed(caught):
    turns = torch.tensor([40.0, 4.0, 2.5, 1.0, 0.01])  # within n_trained positions
    frequencies = turns * 2 * math.pi / STRETCH.n_trained

    def proof(stretch):
        assert (stretch(frequencies) / frequencies).tolist() == pytest.approx(
            [1, 1, (1 + 1 / 8) / 2, 1 / 8, 1 / 8]
        )

    proof(lambda f: stretched(f, STRETCH))
    caught(proof, lambda f: f / STRETCH.factor, lambda f: f)


def test_rotary_turns_by_the_stretched_frequencies(double):
    rotary, X = Rotary(d_head, theta, STRETCH), torch.randn(n, d_head)
    assert torch.equal(rotary.frequencies, stretched(Rotary(d_head, theta).frequencies, STRETCH))
    assert not torch.equal(rotary(X), Rotary(d_head, theta)(X))
    torch.testing.assert_close(rotary(X, 3), rotary.by_hand(X, 3), **CLOSE)


# ---- bad input


@pytest.mark.usefixtures("as_a_reader")
@pytest.mark.parametrize(
    ("call", "rule"),
    [
        (lambda: Rotary(7), "d_head must be even, not 7"),
        (lambda: Rotary(0), "d_head must be a whole number of at least 1"),
        (lambda: Rotary(4, 1.0), "theta must be a finite number above 1, not 1.0"),
        (lambda: Rotary(4, math.inf), "not inf"),
        (lambda: Rotary(4, math.nan), "not nan"),
        (lambda: Stretch(factor=0.5, low=1, high=4, n_trained=9), "factor .* not 0.5"),
        (lambda: Stretch(factor=math.inf, low=1, high=4, n_trained=9), "not inf"),
        (lambda: Stretch(factor=2, low=4, high=4, n_trained=9), "low is 4 and high 4"),
        (lambda: Stretch(factor=2, low=-1, high=4, n_trained=9), "low is -1"),
        (lambda: Stretch(factor=2, low=1, high=4, n_trained=0), "n_trained must be"),
    ],
)
def test_bad_settings_are_told_clearly(call, rule):
    with pytest.raises(ValueError, match=rule):
        call()
