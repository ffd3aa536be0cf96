"""Chapter 05: what the width d_ff buys, how wide it should be, and how many neurons work."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transformer_block import _checks
from transformer_block.activations import record
from transformer_block.experiments.recorded import recorded
from transformer_block.experiments.seeds import seeded
from transformer_block.feed_forward import FeedForward
from transformer_block.language import toy_language
from transformer_block.language_model import LanguageModel
from transformer_block.training import Job, Recipe, toy_config

SHAPES = (8, 11, 16, 23, 32, 45)  # widths d_model, each about √2 times the one before


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


def most_facts(
    seed: int, d_ff: int, activation: str = "gelu", *, d_model: int = 16, near: float = 1.04
) -> int:
    """Return how many lone facts such an FFN stores to 99 %, to within the factor `near`.

    The facts are the first of one long list. Their number is doubled until it is too many, then
    the gap is halved again and again. It is what this training reaches in its 800 steps, not a
    limit of the FFN. At most 8192 are tried.
    """
    listed = lone_facts(seed, 8192, d_model)

    def stores(n_facts: int) -> bool:
        some = listed._replace(keys=listed.keys[:n_facts], answers=listed.answers[:n_facts])
        right = some.right(store(seed, some, d_ff, activation))
        return bool(right.double().mean() >= 0.99)

    stored, too_many = 0, 16
    while too_many <= 8192 and stores(too_many):
        stored, too_many = too_many, 2 * too_many
    while 0 < stored < 8192 and too_many > max(near * stored, stored + 1):
        middle = round(math.sqrt(stored * too_many))
        if stores(middle):
            stored = middle
        else:
            too_many = middle
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
        *({"d_ff": d_ff, "activation": "gelu"} for d_ff in (8, 12, 16, 24, 32, 48)),
        *({"d_ff": d_ff, "activation": "identity"} for d_ff in (8, 48)),
    ],
    seeds=range(81, 87),
)
def facts_stored(seed: int, d_ff: int, activation: str) -> dict[str, float]:
    """Return the number of unrelated facts stored to 99 %, to within 4 %."""
    return {"stored": float(most_facts(seed, d_ff, activation))}


@recorded(
    settings=[{"d_model": d_model, "d_ff": round(512 / d_model)} for d_model in SHAPES],
    seeds=[81, 82, 83],
)
def facts_by_shape(seed: int, d_model: int, d_ff: int) -> dict[str, float]:
    """Return the number of facts stored by FFNs of about 1024 weights each, narrow to wide."""
    return {"stored": float(most_facts(seed, d_ff, d_model=d_model))}


def same_weights(d_model: int, weights: int = 12 * 32**2) -> int:
    """Return the d_ff with which a block of this width has so many weights, biases aside.

    Attention has 4 d_model² of them, the FFN 2 d_model d_ff.

    Raises:
        ValueError: if attention alone has more.

    >>> same_weights(d_model=32), same_weights(d_model=16)
    (128, 352)
    """
    d_ff = round((weights - 4 * d_model**2) / (2 * d_model))
    if d_ff < 1:
        raise ValueError(
            f"attention of d_model {d_model} has {4 * d_model**2} weights; of {weights} none "
            "are left for an FFN: choose a smaller d_model"
        )
    return d_ff


@recorded(
    settings=[
        {"d_model": d_model, "d_ff": same_weights(d_model), "lr": lr}
        for lr in (8e-3, 1.6e-2)
        for d_model in (12, 20, 32, 44, 54)
    ],
    seeds=[91, 92, 93],
)
def block_by_shape(seed: int, d_model: int, d_ff: int, lr: float) -> dict[str, float]:
    """Train two blocks of 12,288 weights each, narrow to wide, for 600 steps.

    Return the excess over the language's floor in nats per token, and the probability that the
    right answer gets in the facts with two keys (`lives`).
    """
    config = toy_config(d_model=d_model, d_ff=d_ff, n_heads=2)
    model = Job(config=config, seed=seed, recipe=Recipe(steps=600, lr=lr)).run().model
    found = toy_language().evaluate(model)
    return {"excess": found.excess, "lives": found.families["lives"].answer}


@torch.no_grad()
def at_work(model: LanguageModel, seed: int) -> dict[str, float]:
    """Look at the neurons of block 1 on 512 sentences.

    Return the share of them that are exactly 0, and the share of all that is written, |σ(·)| |v|,
    which the strongest tenth of the neurons of each token writes.
    """
    ids, counts = toy_language().sample(512, torch.Generator().manual_seed(seed))
    with record(model, ["blocks.0.ffn.hidden"]) as run:
        model(ids)
    hidden = run["blocks.0.ffn.hidden"][counts].abs()
    writes = hidden * dict(model.named_parameters())["blocks.0.ffn.W_2.weight"].norm(dim=0)
    tenth = writes.topk(hidden.shape[-1] // 10).values.sum(dim=-1) / writes.sum(dim=-1)
    return {"zeros": float((hidden == 0).double().mean()), "tenth": float(tenth.mean())}


@recorded(
    settings=[{"activation": "relu"}, {"activation": "gelu"}],
    seeds=range(61, 67),
)
def neurons_at_work(seed: int, activation: str) -> dict[str, float]:
    """Train one block for 300 steps; return `at_work` before (fresh) and after (trained)."""
    job = Job(
        config=toy_config(n_layers=1, activation=activation), seed=seed, recipe=Recipe(steps=300)
    )
    looks = {"fresh": at_work(job.model(), seed), "trained": at_work(job.run().model, seed)}
    return {f"{name}_{when}": v for when, look in looks.items() for name, v in look.items()}
