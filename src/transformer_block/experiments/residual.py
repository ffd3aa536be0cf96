"""Chapter 03: the gradient by depth and what stops it, ways to join, and a net of small parts."""

import copy
from collections.abc import Iterable
from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from transformer_block.activations import record
from transformer_block.block import PreNormBlock
from transformer_block.experiments.deep_stacks import deep_model, first_steps
from transformer_block.experiments.recorded import recorded
from transformer_block.experiments.seeds import seeded
from transformer_block.feed_forward import FeedForward
from transformer_block.language import Batch, toy_language
from transformer_block.language_model import LanguageModel
from transformer_block.multi_head import KeyValueCache, MultiHeadAttention
from transformer_block.norm import LayerNorm
from transformer_block.training import next_token_loss

WAYS = ("add", "append", "concat and project")


class AttentionOnAll(MultiHeadAttention):
    """Read tokens of any `width` and write d_model features: W_Q, W_K and W_V are wider."""

    def __init__(self, width: int, d_model: int, n_heads: int) -> None:
        super().__init__(d_model, n_heads)
        self.W_Q, self.W_K, self.W_V = (nn.Linear(width, d_model, bias=False) for _ in range(3))

    def forward(
        self,
        X: Float[Tensor, "B n width"],
        mask: Bool[Tensor, "n n_k"] | None = None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "B n d_model"]:
        """Return what is to be appended to each token."""
        Q, K, V = self.split(self.W_Q(X)), self.split(self.W_K(X)), self.split(self.W_V(X))
        if cache is not None:
            K, V = cache.extend(K, V)
        return self.W_O(self.attend(Q, K, V, mask).transpose(1, 2).flatten(2))


class AppendBlock(nn.Module):
    """Lay each output beside the stream: H = [X, MHA(Norm(X))], X' = [H, FFN(Norm(H))].

    The sublayers write d_model features, as in a Pre-Norm block, but read all `width` of them; the
    stream is 2 d_model wider behind the block.
    """

    def __init__(self, width: int, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.norm_mha = LayerNorm(width)
        self.mha = AttentionOnAll(width, d_model, n_heads)
        self.norm_ffn = LayerNorm(width + d_model)
        self.ffn = nn.Sequential(
            nn.Linear(width + d_model, 4 * d_model), nn.GELU(), nn.Linear(4 * d_model, d_model)
        )

    def forward(
        self,
        X: Float[Tensor, "B n width"],
        mask: Bool[Tensor, "n n_k"] | None = None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "B n wider"]:
        """Return X', 2 d_model wider than X."""
        H = torch.cat([X, self.mha(self.norm_mha(X), mask, cache)], dim=-1)
        return torch.cat([H, self.ffn(self.norm_ffn(H))], dim=-1)


class ProjectBlock(nn.Module):
    """Concat, then compress: H = [X, MHA(Norm(X))] P₁, X' = [H, FFN(Norm(H))] P₂.

    P₁ and P₂ are `[2 d_model, d_model]`, drawn as any other Linear, or with `as_sum` set to two
    identities on top of each other, which is the sum X + F(X) at the start.
    """

    def __init__(self, block: PreNormBlock, as_sum: bool = False) -> None:
        super().__init__()
        self.norm_mha, self.mha = block.norm_mha, block.mha
        self.norm_ffn, self.ffn = block.norm_ffn, block.ffn
        d_model = self.mha.d_model
        self.P_mha = nn.Linear(2 * d_model, d_model, bias=False)
        self.P_ffn = nn.Linear(2 * d_model, d_model, bias=False)
        if as_sum:
            for P in (self.P_mha, self.P_ffn):
                P.weight.data.copy_(torch.eye(d_model).repeat(1, 2))

    def forward(
        self,
        X: Float[Tensor, "B n d_model"],
        mask: Bool[Tensor, "n n_k"] | None = None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "B n d_model"]:
        """Return X', of the shape of X."""
        H = self.P_mha(torch.cat([X, self.mha(self.norm_mha(X), mask, cache)], dim=-1))
        return cast(Tensor, self.P_ffn(torch.cat([H, self.ffn(self.norm_ffn(H))], dim=-1)))


def projected(model: LanguageModel, *, seed: int, as_sum: bool = False) -> LanguageModel:
    """Let every block of a Pre-Norm model concat and project instead of adding, in place."""
    blocks = (cast(PreNormBlock, block) for block in model.blocks)
    with seeded(seed):
        model.blocks = nn.ModuleList(ProjectBlock(block, as_sum) for block in blocks)
    return model


def joined(way: str, n_layers: int, d_model: int, n_heads: int) -> nn.ModuleList:
    """Return blocks with d_ff = 4 d_model that join in one of the `WAYS`.

    Raises:
        ValueError: for an unknown way.
    """
    if way not in WAYS:
        raise ValueError(f"the ways to join are {', '.join(WAYS)}; not {way!r}")
    if way == "append":
        widths = range(d_model, (2 * n_layers + 1) * d_model, 2 * d_model)
        return nn.ModuleList(AppendBlock(width, d_model, n_heads) for width in widths)
    blocks = [PreNormBlock(d_model, n_heads, 4 * d_model) for _ in range(n_layers)]
    return nn.ModuleList(blocks if way == "add" else map(ProjectBlock, blocks))


def joined_weights(way: str, n_layers: int, d_model: int) -> int:
    """Count the numbers in all matrices of such blocks; none of them is drawn."""
    with torch.device("meta"):
        blocks = joined(way, n_layers, d_model, n_heads=1)
    return sum(p.numel() for p in blocks.parameters() if p.ndim == 2)


def joined_width(way: str, n_layers: int, d_model: int) -> int:
    """Count the features of one token behind the last of such blocks."""
    with torch.device("meta"):
        last = joined(way, n_layers, d_model, n_heads=1)[-1]
        behind = cast(LayerNorm, last.norm_ffn).gamma.numel()
    return behind + d_model if way == "append" else behind


def wave(seed: int, samples: int = 200) -> tuple[Float[Tensor, "n 1"], Float[Tensor, "n 1"]]:
    """Draw points of a wave with a jump, y = sin 5x + ½ sign(x − 0.2), scaled to variance 1."""
    x = torch.rand(samples, 1, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    y = torch.sin(5 * x) + 0.5 * torch.sign(x - 0.2)
    return x, (y - y.mean()) / y.std(unbiased=False)


class ResidualNet(nn.Module):
    """Predict a number from a number, by a stream to which K small parts add.

    X^(0) = x W_in; X^(k) = X^(k−1) + F_k(X^(k−1)); y = X^(K) w, each Linear with its bias.
    """

    def __init__(self, n_parts: int, d_model: int = 16, d_ff: int = 4) -> None:
        super().__init__()
        self.W_in = nn.Linear(1, d_model)
        self.parts = nn.ModuleList(FeedForward(d_model, d_ff, "relu") for _ in range(n_parts))
        self.w = nn.Linear(d_model, 1)

    def forward(self, x: Float[Tensor, "n 1"], n_parts: int | None = None) -> Float[Tensor, "n 1"]:
        """Read the answer off the stream behind the first `n_parts` parts; behind all if None."""
        X = self.W_in(x)
        for F in self.parts[:n_parts]:
            X = X + F(X)
        return self.w(X)

    def errors(self, x: Float[Tensor, "n 1"], y: Float[Tensor, "n 1"]) -> list[float]:
        """Return the mean squared error read off behind the first 1, 2, … parts."""
        counts = range(1, len(self.parts) + 1)
        return [float((y - self(x, k).detach()).square().mean()) for k in counts]


def fit(
    net: ResidualNet,
    x: Float[Tensor, "n 1"],
    y: Float[Tensor, "n 1"],
    learning: Iterable[nn.Parameter],
    n_parts: int | None = None,
    steps: int = 300,
) -> None:
    """Lower the error behind the first `n_parts` parts with Adam, moving these parameters only."""
    adam = torch.optim.Adam(learning, lr=1e-2)
    for _ in range(steps):
        loss = (y - net(x, n_parts)).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()


def fit_together(net: ResidualNet, x: Float[Tensor, "n 1"], y: Float[Tensor, "n 1"]) -> None:
    """Train all parts at once, on the error behind the last."""
    fit(net, x, y, net.parameters())


def fit_one_by_one(net: ResidualNet, x: Float[Tensor, "n 1"], y: Float[Tensor, "n 1"]) -> None:
    """Train part after part on the error behind it, all that came before frozen.

    W_in and w learn with the first part only. From then on the error behind part k is that of
    F_k(X) w against y − (prediction so far): each part fits what the earlier ones left.
    """
    for k, F in enumerate(net.parts, 1):
        learning = [*F.parameters()]
        if k == 1:
            learning += [*net.W_in.parameters(), *net.w.parameters()]
        fit(net, x, y, learning, k)


def new_sentences(seed: int) -> Batch:
    """Draw 32 sentences of the toy language that a training from this seed does not begin with."""
    return toy_language().sample(32, torch.Generator().manual_seed(seed + 1000))


def gradient_lengths(model: LanguageModel, *, seed: int) -> list[float]:
    """Return the length of the gradient by each block's weights, first to last, on 32 sentences."""
    ids, counts = new_sentences(seed)
    every = [list(block.parameters()) for block in model.blocks]
    loss = next_token_loss(model(ids), ids, counts)
    slopes = iter(torch.autograd.grad(loss, [p for those in every for p in those]))
    return [float(torch.stack([next(slopes).norm() for _ in those]).norm()) for those in every]


def sizes(model: LanguageModel, *names: str, seed: int) -> list[float]:
    """Return the root mean square of activations on 32 sentences; names as `record` takes them."""
    with torch.no_grad(), record(model, list(names)) as run:
        model(new_sentences(seed).ids)
    return [float(X.square().mean().sqrt()) for X in run.values()]


def apart(model: LanguageModel, *, seed: int) -> float:
    """Return how far tokens behind the last block are from their mean: a share of their length."""
    last = f"blocks.{len(model.blocks) - 1}"
    with torch.no_grad(), record(model, [last]) as run:
        model(new_sentences(seed).ids)
    X = run[last]
    return float((X - X.mean(dim=(0, 1))).norm() / X.norm())


@torch.no_grad()
def part_of_change(
    start: LanguageModel, after: LanguageModel, *, keep: bool, seed: int, random: bool = False
) -> LanguageModel:
    """Return a copy of `after` in which the matrices of the blocks made only part of their change.

    A matrix W, changed by ΔW, answers a direction u of its input with ΔW u. That answer alone is
    kept, W = W_start + ΔW u uᵀ, or it alone is left out, W = W_start + ΔW (I − u uᵀ). Here u is
    the mean token that reaches the matrix, on 32 sentences, the matrices before it being edited
    already; with `random` it is a direction drawn from the seed. All else is as in `after`.
    """
    model, old = copy.deepcopy(after), dict(start.blocks.named_modules())
    generator = torch.Generator().manual_seed(seed)

    def edit(name: str, linear: nn.Linear, given: tuple[Any, ...]) -> None:
        mean = given[0].flatten(0, -2).mean(dim=0)
        u = torch.randn(mean.shape, generator=generator) if random else mean
        u = u / u.norm()
        before = cast(nn.Linear, old[name]).weight
        change = linear.weight - before
        answer = torch.outer(change @ u, u)
        linear.weight.copy_(before + (answer if keep else change - answer))

    handles = [
        part.register_forward_pre_hook(lambda part, given, name=name: edit(name, part, given))
        for name, part in model.blocks.named_modules()
        if isinstance(part, nn.Linear)
    ]
    model(new_sentences(seed).ids)  # each matrix is edited as the sentences reach it
    for handle in handles:
        handle.remove()
    return model


@recorded(settings=[{"kind": "no residual", "n_layers": 24}], seeds=range(34, 40))
def five_steps(seed: int, kind: str, n_layers: int) -> dict[str, float | list[float]]:
    """Train for five steps; return the first block's gradient with parts of the change.

    `start` and `after` five steps; the answer to the common direction `left_out`, or it `alone`;
    the answer to a random direction left out instead, `control`. `growth` says of each sublayer,
    first to last, how many times as large as at the start it writes after the five steps; `apart`
    how far, at the start, the tokens behind the last block are from their mean, as a share.
    """
    start = deep_model(kind, n_layers, seed=seed)
    after = copy.deepcopy(start)
    first_steps(after, seed=seed, steps=5)
    models = {
        "start": start,
        "after": after,
        "left_out": part_of_change(start, after, keep=False, seed=seed),
        "alone": part_of_change(start, after, keep=True, seed=seed),
        "control": part_of_change(start, after, keep=False, seed=seed, random=True),
    }
    one, other = (sizes(m, "blocks.*.mha", "blocks.*.ffn", seed=seed) for m in (start, after))
    growth = [b / a for a, b in zip(one, other, strict=True)]
    first = {name: gradient_lengths(model, seed=seed)[0] for name, model in models.items()}
    return {**first, "growth": growth, "apart": apart(start, seed=seed)}


@recorded(
    settings=[
        {"kind": kind, "n_layers": n_layers}
        for n_layers in (2, 4, 8, 12, 16, 24)
        for kind in ("pre-norm", "no residual")
    ],
    seeds=[31, 32, 33],
)
def gradient_by_depth(seed: int, kind: str, n_layers: int) -> dict[str, list[float]]:
    """Return the gradient's length in each block, first to last, at steps 0, 5 and 50."""
    model, steps = deep_model(kind, n_layers, seed=seed), (0, 5, 50)
    found = first_steps(model, seed=seed, steps=51, look_at=steps).gradients
    return {f"step_{step}": found[step] for step in steps}


@recorded(
    settings=[
        {"way": way, "n_layers": n_layers}
        for n_layers in (8, 24)
        for way in ("add", "concat and project", "the same, begun as a sum")
    ],
    seeds=range(31, 41),
)
def ways_to_join(seed: int, way: str, n_layers: int) -> dict[str, float]:
    """Return the loss, in nats per token, over the last ten of sixty steps at a constant rate."""
    model = deep_model("pre-norm", n_layers, seed=seed)
    if way != "add":
        projected(model, seed=seed, as_sum=way == "the same, begun as a sum")
    losses = first_steps(model, seed=seed, steps=60).losses
    return {"loss": sum(losses[-10:]) / 10}


@recorded(
    settings=[{"way": "one by one"}, {"way": "together"}],
    seeds=[31, 32, 33, 34, 35, 36],
)
def whole_or_parts(seed: int, way: str) -> dict[str, list[float]]:
    """Return the mean squared error (the variance is 1) read off behind 1, 2, … 6 parts."""
    x, y = wave(seed)
    with seeded(seed):
        net = ResidualNet(6)
    (fit_together if way == "together" else fit_one_by_one)(net, x, y)
    return {"errors": net.errors(x, y)}
