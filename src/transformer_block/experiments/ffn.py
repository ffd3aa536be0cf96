"""Chapter 05: what the width d_ff buys: planes that separate, and facts stored."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transformer_block import _checks
from transformer_block.experiments.recorded import recorded
from transformer_block.experiments.seeds import seeded
from transformer_block.feed_forward import FeedForward


def cover(n_points: int, n_features: int) -> float:
    """Return how likely a random dichotomy is separable: 2 Σ_{k<D} C(N−1, k) / 2^N.

    N points in general position, D features of which one is the constant 1 (so D − 1 numbers
    beside it). Half of all dichotomies are separable at N = 2 D.

    Source: Cover (1965), theorem 1 and section IV.

    >>> cover(n_points=30, n_features=15)
    0.5
    """
    _checks.positive(n_points=n_points, n_features=n_features)
    ways = 2 * sum(math.comb(n_points - 1, k) for k in range(n_features))
    return ways / 2**n_points


def separable(
    features: Float[Tensor, "N m"], sides: Float[Tensor, "many N"], rounds: int = 60
) -> Bool[Tensor, " many"]:
    """Say for each dichotomy (+1 or −1 a point) whether one plane has it on the right sides.

    A logistic regression by Newton's method, on an orthonormal basis of the features and the
    constant 1. Where a plane exists the loss falls to 0 and the plane is found; where none does
    it stops at a minimum above 0, with a point on the wrong side.

    Give features computed in float64. In float32 rounding makes features that depend on each
    other look independent, and dichotomies "become separable" that are not.

    Raises:
        ValueError: if a side is neither +1 nor −1.
    """
    if not (sides.abs() == 1).all():
        raise ValueError("each point lies on side +1 or −1; other values were given")
    U, S, _ = torch.linalg.svd(F.pad(features, (0, 1), value=1.0), full_matrices=False)
    nothing = S[0] * max(features.shape) * torch.finfo(S.dtype).eps
    rank = int((nothing < S).sum())
    X = sides.unsqueeze(-1) * U[:, :rank]  # a point is right where X w > 0
    w = X.new_zeros(len(sides), rank, 1)
    nearly_nothing = 1e-9 * torch.eye(rank, dtype=X.dtype)  # so that Newton's system has an answer
    for _ in range(rounds):
        p = torch.sigmoid(-X @ w)  # how wrong each point still is
        slope, bend = X.mT @ p, X.mT @ (p * (1 - p) * X)
        done = (p < 0.5).all(dim=1) | (slope.norm(dim=1) < 1e-9)
        if done.all():
            break
        w = w + _downhill(X, w, torch.linalg.solve(bend + nearly_nothing, slope))
    return (X @ w > 0).all(dim=1).squeeze(-1)


def _downhill(
    X: Float[Tensor, "many N r"], w: Float[Tensor, "many r 1"], step: Float[Tensor, "many r 1"]
) -> Float[Tensor, "many r 1"]:
    before = F.softplus(-X @ w).sum(dim=1, keepdim=True)
    for _ in range(8):  # Newton may step too far: halve until the loss does not rise
        rises = F.softplus(-X @ (w + step)).sum(dim=1, keepdim=True) > before
        if not rises.any():
            break
        step = torch.where(rises, step / 2, step)
    return step


def separable_share(
    seed: int,
    d_model: int,
    d_ff: int,
    activation: str = "gelu",
    *,
    n_points: int = 30,
    n_dichotomies: int = 100,
    dtype: torch.dtype = torch.float64,
) -> float:
    """Return the share of random dichotomies of random points that one plane separates in d_ff.

    The points are N(0, 1) in d_model; the features are σ(x W₁ + b₁) of an untrained FFN, computed
    in `dtype` and judged in float64. Rounding is a non-linearity, too: in float32 it suffices to
    "separate" what an affine map cannot.
    """
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(n_points, d_model, generator=generator, dtype=torch.float64)
    sides = torch.randint(2, (n_dichotomies, n_points), generator=generator).double() * 2 - 1
    ffn = _fresh(seed, d_model, d_ff, activation).to(dtype)
    with torch.no_grad():
        features = ffn.activation(ffn.W_1(points.to(dtype)))
    return float(separable(features.double(), sides).double().mean())


class Facts(NamedTuple):
    """Hold facts to be stored: at key i the word answers[i] is right."""

    keys: Float[Tensor, "K d_model"]
    answers: Int[Tensor, " K"]
    words: Float[Tensor, "n_answers d_model"]  # the logits are FFN(key) · word

    def logits(self, ffn: FeedForward) -> Float[Tensor, "K n_answers"]:
        """Score each answer at each key."""
        return ffn(self.keys) @ self.words.T

    def right(self, ffn: FeedForward) -> Bool[Tensor, " K"]:
        """Say which facts the FFN answers correctly."""
        with torch.no_grad():
            return self.logits(ffn).argmax(dim=-1) == self.answers


def lone_facts(seed: int, n_facts: int, d_model: int = 16, n_answers: int = 8) -> Facts:
    """Draw facts that have nothing to do with each other: each key N(0, 1), each answer random."""
    _checks.positive(n_facts=n_facts, d_model=d_model, n_answers=n_answers)
    generator = torch.Generator().manual_seed(seed)
    words = torch.randn(n_answers, d_model, generator=generator) / d_model**0.5
    keys = torch.randn(n_facts, d_model, generator=generator)
    return Facts(keys, torch.randint(n_answers, (n_facts,), generator=generator), words)


def two_key_facts(seed: int, d_model: int = 16, n_keys: int = 16, n_answers: int = 8) -> Facts:
    """Draw a table of n_keys × n_keys facts, of which neither key alone tells the answer.

    A first key is a random vector in the first half of the features, a second key one in the
    second half; fact i n_keys + j has first key i and second key j.

    Raises:
        ValueError: if d_model is odd.
    """
    if d_model % 2:
        raise ValueError(f"two keys share d_model half and half; {d_model} is odd")
    generator = torch.Generator().manual_seed(seed)
    first, second = torch.randn(2, n_keys, d_model // 2, generator=generator).unbind()
    pairs = [first.repeat_interleave(n_keys, dim=0), second.repeat(n_keys, 1)]
    lone = lone_facts(seed, n_keys**2, d_model, n_answers)
    return lone._replace(keys=torch.cat(pairs, dim=-1))


def store(
    seed: int, facts: Facts, d_ff: int, activation: str = "gelu", *, steps: int = 800
) -> FeedForward:
    """Train a fresh FFN on all facts at once (Adam, 1e-2) until all are right or steps run out."""
    ffn = _fresh(seed, facts.keys.shape[-1], d_ff, activation)
    adam = torch.optim.Adam(ffn.parameters(), lr=1e-2, fused=True)
    for step in range(steps):
        loss = F.cross_entropy(facts.logits(ffn), facts.answers)
        adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        adam.step()
        if step % 20 == 19 and bool(facts.right(ffn).all()):
            break
    return ffn


def most_facts(seed: int, d_ff: int, activation: str = "gelu", *, ratio: float = 1.19) -> int:
    """Return how many lone facts such an FFN stores to 99 %, on a grid that grows by `ratio`.

    It is what this training reaches in its 800 steps, not a limit of the FFN.
    """
    stored, n_facts = 0, 16.0
    while n_facts < 8192:
        facts = lone_facts(seed, round(n_facts))
        if facts.right(store(seed, facts, d_ff, activation)).double().mean() < 0.99:
            break
        stored, n_facts = round(n_facts), n_facts * ratio
    return stored


def _fresh(seed: int, d_model: int, d_ff: int, activation: str) -> FeedForward:
    with seeded(seed):
        return FeedForward(d_model, d_ff, activation)


@recorded(
    settings=[
        {"d_model": d_model, "d_ff": d_ff, "activation": activation}
        for d_model in (16, 8, 32)
        for d_ff in (16, 4, 8, 24, 32)
        for activation in ("gelu", "identity")
    ],
    seeds=[51, 52, 53],
)
def d_ff_buys(seed: int, d_model: int, d_ff: int, activation: str) -> dict[str, float]:
    """Return the share of 100 dichotomies of 30 points, and the share of 256 facts right."""
    table = two_key_facts(seed, d_model)
    right = table.right(store(seed, table, d_ff, activation))
    return {
        "separable": separable_share(seed, d_model, d_ff, activation),
        "facts": float(right.double().mean()),
    }


@recorded(
    settings=[
        {"d_ff": d_ff, "activation": activation}
        for activation in ("identity", "gelu", "relu")
        for d_ff in (8, 16, 32, 64, 128)
    ],
    seeds=[51, 52, 53],
)
def facts_stored(seed: int, d_ff: int, activation: str) -> dict[str, float]:
    """Return the number of facts, on a grid that grows by 19 % a step."""
    return {"stored": float(most_facts(seed, d_ff, activation))}
