"""Chapter 06: where the norm stands, sentences at other places, and torch's own layer."""

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from transformer_block import _checks
from transformer_block.attention import causal_mask
from transformer_block.block import PostNormBlock, PreNormBlock
from transformer_block.experiments.deep_stacks import deep_model, read_out, streams
from transformer_block.experiments.recorded import recorded
from transformer_block.experiments.seeds import seeded
from transformer_block.feed_forward import SwiGLU
from transformer_block.language import Batch, ToyLanguage, toy_language
from transformer_block.language_model import LanguageModel
from transformer_block.multi_head import KeyValueCache
from transformer_block.norm import LayerNorm, RMSNorm
from transformer_block.training import Recipe, toy_config, train

# mixer → features of the stream, neurons a place in the dense box (0: the block), learning rate
MIXERS = {
    "block": (64, 0, 3e-3),
    "block with positions": (64, 0, 3e-3),
    "dense box": (64, 3, 3e-3),
    "dense box, narrow stream": (16, 12, 1e-2),
    "dense box, large": (64, 64, 3e-3),
}


class DenseBox(nn.Module):
    """Mix tokens and features at once: X' = X + GELU(Norm(X) W_1 + b_1) W_2 + b_2, causally.

    Here X is the whole text as one long row of n · d_model features. Each pair of places, one that
    reads and one that is read, has a matrix of its own in W_1, `[n_ctx, n_ctx, d_model, width]`,
    of which the causal half is used; each place has its own W_2. Nothing is shared between places,
    and no weight depends on what the tokens hold.

    Raises:
        ValueError: for sizes below 1, or an X that is not a finite `[B, n, d_model]` with
            n <= n_ctx.
    """

    def __init__(self, n_ctx: int, d_model: int, width: int) -> None:
        super().__init__()
        _checks.positive(n_ctx=n_ctx, d_model=d_model, width=width)
        self.n_ctx, self.d_model, self.width = n_ctx, d_model, width
        self.norm = LayerNorm(d_model)
        bound = torch.arange(1, n_ctx + 1).mul(d_model).rsqrt()  # as nn.Linear: 1/√(its inputs)
        places = bound[:, None, None, None]
        self.W_1 = nn.Parameter(
            torch.empty(n_ctx, n_ctx, d_model, width).uniform_(-1, 1).mul(places)
        )
        self.b_1 = nn.Parameter(torch.zeros(n_ctx, width))
        self.W_2 = nn.Parameter(torch.empty(n_ctx, width, d_model).uniform_(-1, 1).mul(width**-0.5))
        self.b_2 = nn.Parameter(torch.zeros(n_ctx, d_model))
        self.reads: Tensor
        self.register_buffer("reads", torch.ones(n_ctx, n_ctx).tril(), persistent=False)

    @property
    def n_weights(self) -> int:
        """Return how many numbers of W_1 (its causal half), b_1, W_2 and b_2 are in use."""
        pairs = self.n_ctx * (self.n_ctx + 1) // 2
        d, m = self.d_model, self.width
        return pairs * d * m + self.n_ctx * (m + m * d + d)

    def forward(
        self,
        X: Float[Tensor, "B n d_model"],
        mask: Bool[Tensor, "n n"] | None = None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "B n d_model"]:
        """Return X', of the shape of X; causal whatever the mask says."""
        n = X.shape[1]
        if n > self.n_ctx:
            raise ValueError(f"the box has weights for {self.n_ctx} places, not for {n}")
        W_1 = self.W_1[:n, :n] * self.reads[:n, :n, None, None]
        W_1 = W_1.permute(1, 2, 0, 3).reshape(n * self.d_model, n * self.width)
        hidden = F.gelu((self.norm(X).flatten(1) @ W_1).view(len(X), n, -1) + self.b_1[:n])
        return X + torch.einsum("bnm,nmd->bnd", hidden, self.W_2[:n]) + self.b_2[:n]


@dataclass(frozen=True)
class ElsewhereLanguage:
    """Say the sentences of a language behind 0, 1, 2 … fillers, with half of the pairs held out.

    A family of sentences is said behind k fillers only if its number plus k is even. So every
    word, every family and every place is met in training, but only half of the pairs family ×
    place. The filler is the <bos> that begins every sentence: k fillers are k more of them.

    Raises:
        ValueError: for n_places below 2.
    """

    language: ToyLanguage
    n_places: int = 6

    def __post_init__(self) -> None:
        """Check the field."""
        if self.n_places < 2:
            raise ValueError(f"n_places must be at least 2, not {self.n_places!r}")

    @property
    def n_ctx(self) -> int:
        """The longest row: fillers, <bos> and the longest sentence."""
        return self.n_places + max(map(len, self.language.sentences))

    @property
    def said(self) -> Bool[Tensor, "families places"]:
        """Which family is said at which place: True = in training."""
        numbers = torch.arange(len(self.language.families))[:, None]
        return (numbers + torch.arange(self.n_places)) % 2 == 0

    def batches(
        self, n_batches: int, batch_size: int, generator: torch.Generator
    ) -> Iterator[Batch]:
        """Yield batches for `train`: each of one number of fillers, drawn anew."""
        _checks.positive(n_batches=n_batches, batch_size=batch_size)
        halves = [
            self.language.only(*(f.name for f in self.language.families[parity::2]))
            for parity in (0, 1)
        ]
        for _ in range(n_batches):
            places = torch.randint(self.n_places, (batch_size,), generator=generator)
            rows = [
                row
                for k, many in enumerate(places.bincount(minlength=self.n_places).tolist())
                if many
                for row in self._behind(k, halves[k % 2].sample(many, generator).ids)
            ]
            ids = pad_sequence(rows, batch_first=True, padding_value=self.language.pad_id)
            yield Batch(ids, (ids != self.language.pad_id) & (ids != self.language.bos_id))

    @torch.no_grad()
    def excess(self, model: nn.Module) -> Float[Tensor, "families places"]:
        """Judge a model at every family × place, held out or not: nats per token above the bound.

        Counted are the words after which the sentence can belong to one family only: before that,
        the place itself would tell which families can come. Exact, with no sampling.
        """
        trie = self.language.trie
        ids = pad_sequence(
            [self.language.encode(sentence) for sentence in self.language.sentences],
            batch_first=True,
            padding_value=self.language.pad_id,
        )
        told = (trie.node_family > 0).sum(dim=0) == 1
        weights = trie.node_family * told
        scores = []
        for k in range(self.n_places):
            logits = torch.cat([model(part) for part in torch.split(self._behind(k, ids), 512)])
            log_q = logits[trie.node_sentence, trie.node_length + k].double().log_softmax(dim=-1)
            gap = trie.edge_p.log() - log_q[trie.edge_node, trie.edge_word]
            kl = torch.zeros_like(trie.node_p).index_add(0, trie.edge_node, trie.edge_p * gap)
            scores.append(weights @ kl / weights.sum(dim=1))
        return torch.stack(scores, dim=1)

    def _behind(self, k: int, ids: Int[Tensor, "B n"]) -> Int[Tensor, "B m"]:
        return torch.cat([torch.full((len(ids), k), self.language.bos_id), ids], dim=1)


def train_elsewhere(mixer: str, *, seed: int, steps: int = 400) -> LanguageModel:
    """Train one mixer on the toy language said at every other place; see `ElsewhereLanguage`.

    All of `MIXERS` have one block or one box between the same embeddings and head. "block" has no
    positions but the causal mask; the first three have about as many weights.

    Raises:
        ValueError: for an unknown kind.
    """
    if mixer not in MIXERS:
        raise ValueError(f"the mixers are {', '.join(MIXERS)}; not {mixer!r}")
    d_model, width, lr = MIXERS[mixer]
    source = ElsewhereLanguage(toy_language())
    config = toy_config(n_layers=1, n_ctx=source.n_ctx, d_model=d_model, d_ff=4 * d_model)
    with seeded(seed):
        model = LanguageModel(config)
        if width:
            model.blocks = nn.ModuleList([DenseBox(source.n_ctx, d_model, width)])
    if mixer == "block":
        nn.init.zeros_(model.P.weight).requires_grad_(False)
    train(model, source, seed=seed, recipe=Recipe(steps=steps, batch_size=64, lr=lr))
    return model


@torch.no_grad()
def fillers_read(model: LanguageModel, source: ElsewhereLanguage, *, seed: int) -> list[float]:
    """Return how much of the number of fillers a linear reader finds: R² of `read_out`.

    Two numbers: in X^(0) and behind the first block, both at the last token of each sentence. The
    sentences and their fillers are shuffled by `seed`, so the reader is judged on pairs of them
    that it was not fitted on.
    """
    rows = [source.language.encode(sentence) for sentence in source.language.sentences]
    last = torch.tensor([len(row) - 1 for row in rows])
    ids = pad_sequence(rows, batch_first=True, padding_value=source.language.pad_id)
    at_last: list[list[Tensor]] = [[], []]
    for k in range(source.n_places):
        behind = source._behind(k, ids)
        X_0 = model.E(behind) + model.P.weight[: behind.shape[1]]
        X_1 = model.blocks[0](X_0, causal_mask(behind.shape[1]))
        for kept, X in zip(at_last, (X_0, X_1), strict=True):
            kept.append(X[torch.arange(len(ids)), last + k])
    fillers = torch.arange(source.n_places).repeat_interleave(len(ids))[:, None].float()
    order = torch.randperm(len(fillers), generator=torch.Generator().manual_seed(seed))
    return [read_out(torch.cat(kept)[order], fillers[order]) for kept in at_last]


def names_in_torch(block: PreNormBlock) -> dict[str, list[Tensor]]:
    """Say which of our weights stand one below the other in each of torch's.

    torch keeps W_Q, W_K and W_V in one `in_proj_weight`; everything else is one to one. Both
    store a matrix transposed. Biases that our block lacks are left out.

    Raises:
        ValueError: for a block with RMSNorm or SwiGLU, which torch's layer has not.
    """
    mha, ffn = block.mha, block.ffn
    if isinstance(ffn, SwiGLU) or isinstance(block.norm_mha, RMSNorm):
        raise ValueError('torch\'s layer has LayerNorm and a two-layer FFN only; use norm="layer"')
    names: dict[str, list[Tensor]] = {
        "self_attn.in_proj_weight": [mha.W_Q.weight, mha.W_K.weight, mha.W_V.weight],
        "self_attn.out_proj.weight": [mha.W_O.weight],
        "linear1.weight": [ffn.W_1.weight],
        "linear1.bias": [ffn.W_1.bias],
        "linear2.weight": [ffn.W_2.weight],
        "linear2.bias": [ffn.W_2.bias],
    }
    for number, norm in enumerate((block.norm_mha, block.norm_ffn), 1):
        gamma, beta = norm.parameters()
        names |= {f"norm{number}.weight": [gamma], f"norm{number}.bias": [beta]}
    if mha.W_Q.bias is not None:
        names["self_attn.in_proj_bias"] = [mha.W_Q.bias, mha.W_K.bias, mha.W_V.bias]
        names["self_attn.out_proj.bias"] = [mha.W_O.bias]
    return names


def as_torch_layer(block: PreNormBlock) -> nn.TransformerEncoderLayer:
    """Build torch's layer with copies of the block's weights, Pre-Norm or Post-Norm as it is.

    Its mask means the opposite of ours: `layer(X, src_mask=~causal_mask(n))`.
    """
    names = names_in_torch(block)
    layer = nn.TransformerEncoderLayer(
        block.mha.d_model,
        block.mha.n_heads,
        block.ffn.W_1.out_features,
        dropout=0.0,
        activation=block.ffn.activation,  # type: ignore[arg-type]  # a function of one tensor
        norm_first=not isinstance(block, PostNormBlock),
        batch_first=True,
        dtype=block.mha.W_Q.weight.dtype,
    )
    for name, theirs in layer.named_parameters():
        ours = torch.cat([*names[name]]) if name in names else torch.zeros_like(theirs)
        theirs.data.copy_(ours)
    return layer


def gradients_by_torch_name(block: PreNormBlock) -> dict[str, Tensor]:
    """Return the gradients of the block's weights under torch's names, after `backward()`."""
    return {
        name: torch.cat([weight.grad for weight in weights if weight.grad is not None])
        for name, weights in names_in_torch(block).items()
    }


def first_hundred(
    model: LanguageModel, *, seed: int, lr: float, warm_up: float, steps: int = 100
) -> tuple[list[float], list[float]]:
    """Train a model in place; return the loss of each step and the last gradient of each block.

    Batches of 32 sentences, no clipping. For the share `warm_up` of the steps the rate rises to
    `lr` in equal parts, and there it stays. A block's gradient is the length of that of all its
    weights together, as the last step used it.
    """
    losses: list[float] = []
    recipe = Recipe(steps=steps, batch_size=32, lr=lr, warm_up=warm_up, lr_last=1.0, clip=math.inf)
    train(
        model,
        toy_language(),
        seed=seed,
        recipe=recipe,
        on_step=lambda _, loss: losses.append(loss),
    )
    return losses, [_length_of_gradient(block) for block in model.blocks]


def _length_of_gradient(block: nn.Module) -> float:
    lengths = [weight.grad.norm() for weight in block.parameters() if weight.grad is not None]
    return float(torch.stack(lengths).norm())


@torch.no_grad()
def apart(model: LanguageModel, *, seed: int) -> list[float]:
    """Return which share of the stream tells tokens apart, in X^(0) and behind each block.

    The fifth tokens of 64 sentences have a common part, their mean, which tells nothing about any
    of them. The share is √(sum of the squares without the mean / sum of the squares): 1 where the
    mean is 0, and 0 where all 64 are the same vector.
    """
    ids = toy_language().sample(64, torch.Generator().manual_seed(seed)).ids[:, :5]
    shares = []
    for X in streams(model, model.E(ids) + model.P.weight[:5]):
        fifth = X[:, -1]
        shares.append(float((fifth - fifth.mean(dim=0)).norm() / fifth.norm()))
    return shares


@recorded(
    settings=[
        {"kind": kind, "n_layers": n_layers, "lr": lr, "warm_up": warm_up}
        for n_layers in (6, 36)
        for warm_up in (0.0, 0.5)
        for lr in (3e-4, 1e-3, 3e-3, 1e-2)
        for kind in ("pre-norm", "post-norm")
    ]
    + [{"kind": "adds norm", "n_layers": 36, "lr": 3e-3, "warm_up": 0.0}],
    seeds=[64, 65, 66],
)
def norm_place(seed: int, kind: str, n_layers: int, lr: float, warm_up: float) -> dict[str, float]:
    """Train for 100 steps; return the mean loss of the last five, and two gradients of the last.

    `first` and `last` are the gradients of the first block and of the last one.
    """
    model = deep_model(kind, n_layers, seed=seed)
    losses, gradients = first_hundred(model, seed=seed, lr=lr, warm_up=warm_up)
    return {"loss": sum(losses[-5:]) / 5, "first": gradients[0], "last": gradients[-1]}


@recorded(
    settings=[
        {"kind": "pre-norm", "lr": 3e-3},
        {"kind": "post-norm", "lr": 3e-4},
        {"kind": "post-norm", "lr": 3e-3},
    ],
    seeds=[*range(61, 76)],
)
def tells_apart(seed: int, kind: str, lr: float) -> dict[str, float]:
    """Train 36 blocks without warm-up; return what `apart` finds at the end of the stack.

    `after_5` and `after_20` say after how many steps.
    """
    found = {}
    for steps in (5, 20):
        model = deep_model(kind, 36, seed=seed)
        first_hundred(model, seed=seed, lr=lr, warm_up=0.0, steps=steps)
        found[f"after_{steps}"] = apart(model, seed=seed)[-1]
    return found


@recorded(
    settings=[
        {"kind": kind, "embeddings": embeddings}
        for embeddings in (0.02, 1.0)
        for kind in ("pre-norm", "post-norm")
    ],
    seeds=[*range(64, 73)],
)
def small_weights(seed: int, kind: str, embeddings: float) -> dict[str, float | list[float]]:
    """Train 36 blocks drawn from N(0, 0.02²) for 50 steps at 3e-3, without warm-up.

    E and P are drawn from N(0, embeddings²). Return the mean loss of the last five steps, and what
    `apart` finds after five steps.
    """
    model = deep_model(kind, 36, seed=seed, std=0.02)
    with torch.no_grad():
        for table in (model.E, model.P):
            table.weight.mul_(embeddings / 0.02)
    early = copy.deepcopy(model)
    first_hundred(early, seed=seed, lr=3e-3, warm_up=0.0, steps=5)
    losses, _ = first_hundred(model, seed=seed, lr=3e-3, warm_up=0.0, steps=50)
    return {"loss": sum(losses[-5:]) / 5, "apart": apart(early, seed=seed)}


@recorded(
    settings=[
        {"mixer": mixer}
        for mixer in (
            "dense box",
            "block",
            "block with positions",
            "dense box, narrow stream",
            "dense box, large",
        )
    ],
    seeds=[61, 62, 63],
)
def held_out_pairs(seed: int, mixer: str) -> dict[str, float]:
    """Return the excess in nats per token, averaged over the pairs, and the weights in use."""
    source = ElsewhereLanguage(toy_language())
    model = train_elsewhere(mixer, seed=seed)
    excess, mixing = source.excess(model), model.blocks[0]
    return {
        "trained": float(excess[source.said].mean()),
        "held_out": float(excess[~source.said].mean()),
        "weights": mixing.n_weights
        if isinstance(mixing, DenseBox)
        else sum(p.numel() for p in mixing.parameters()),
    }
