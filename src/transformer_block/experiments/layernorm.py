"""Chapter 04: BatchNorm in the place of LayerNorm, and norms taken out."""

from copy import deepcopy
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from transformer_block import _checks
from transformer_block.ablation import without
from transformer_block.activations import record
from transformer_block.attention import causal_mask
from transformer_block.block import PreNormBlock
from transformer_block.experiments.recorded import recorded
from transformer_block.experiments.seeds import seeded
from transformer_block.experiments.stack import narrow, rms, with_head
from transformer_block.language import toy_language
from transformer_block.language_model import LanguageModel
from transformer_block.norm import LayerNorm, RMSNorm
from transformer_block.training import Recipe, next_token_loss, toy_config, train


class BatchNormOverTokens(nn.Module):
    """Shift and scale each feature to mean 0 and variance 1 over all tokens of the batch.

    y = γ (x − μ) / √(σ² + ε) + β, with one μ and one σ² for each feature. In training mode they
    are those of the batch, over its sentences and its positions, padding included; a running
    average of them is kept (σ² of that one divided by tokens − 1). In evaluation mode the running
    average takes their place, and the batch does not matter.

    Raises:
        ValueError: for an X that is not a finite `[..., d_model]`; in training mode for a single
            token, whose features have no spread.

    Source: Ioffe and Szegedy (2015), algorithms 1 and 2.
    """

    def __init__(self, d_model: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        _checks.positive(d_model=d_model)
        self.d_model, self.eps, self.momentum = d_model, eps, momentum
        self.gamma = nn.Parameter(torch.ones(d_model))
        self.beta = nn.Parameter(torch.zeros(d_model))
        self.running_mu: Tensor
        self.running_var: Tensor
        self.register_buffer("running_mu", torch.zeros(d_model))
        self.register_buffer("running_var", torch.ones(d_model))

    def forward(self, X: Float[Tensor, "*tokens d_model"]) -> Float[Tensor, "*tokens d_model"]:
        """Normalise each feature, over the tokens or by the running average."""
        _checks.stream(X, self.d_model)
        tokens = X.reshape(-1, self.d_model)
        if self.training and len(tokens) == 1:
            raise ValueError(
                "BatchNorm in training mode needs two tokens or more: over one token the variance "
                "of a feature is 0; give a larger batch, or call eval()"
            )
        seen, own = (self.running_mu, self.running_var), (self.gamma, self.beta)
        Y = F.batch_norm(tokens, *seen, *own, self.training, self.momentum, self.eps)
        return Y.view_as(X)


class FixedAffine(BatchNormOverTokens):
    """Normalise nothing: y = γ (x − μ) / √(σ² + ε) + β with constants μ and σ².

    They are those of the first batch it sees, feature by feature, and stay as they are; γ and β
    learn as in any norm. No token depends on another, and there is one mode only.

    Raises:
        ValueError: for an X that is not a finite `[..., d_model]`.
    """

    def __init__(self, d_model: int, eps: float = 1e-5) -> None:
        super().__init__(d_model, eps)
        self.is_set = False

    def forward(self, X: Float[Tensor, "*tokens d_model"]) -> Float[Tensor, "*tokens d_model"]:
        """Scale and shift each feature by constants."""
        _checks.stream(X, self.d_model)
        tokens = X.reshape(-1, self.d_model)
        if not self.is_set:
            self.running_mu.copy_(tokens.detach().mean(dim=0))
            self.running_var.copy_(tokens.detach().var(dim=0, unbiased=False))
            self.is_set = True
        seen, own = (self.running_mu, self.running_var), (self.gamma, self.beta)
        return F.batch_norm(tokens, *seen, *own, False, 0.0, self.eps).view_as(X)


# What stands in the place of the norms: in the blocks, and behind the last one.
NormClass = type[LayerNorm] | type[RMSNorm] | type[BatchNormOverTokens]
NORMS: dict[str, tuple[NormClass, NormClass]] = {
    "LayerNorm": (LayerNorm, LayerNorm),
    "RMSNorm": (RMSNorm, RMSNorm),
    "BatchNorm": (BatchNormOverTokens, BatchNormOverTokens),
    "fixed": (FixedAffine, FixedAffine),
    "BatchNorm, LayerNorm last": (BatchNormOverTokens, LayerNorm),
    "LayerNorm, fixed last": (LayerNorm, FixedAffine),
}


def with_norms(model: LanguageModel, norms: str) -> LanguageModel:
    """Return a copy of a model in which fresh norms of this kind stand for its LayerNorms.

    Raises:
        ValueError: for norms that are none of `NORMS`.
    """
    if norms not in NORMS:
        raise ValueError(f"the norms are {'; '.join(NORMS)}; not {norms!r}")
    in_blocks, last = NORMS[norms]
    model = deepcopy(model)
    for path, part in list(model.named_modules()):
        if isinstance(part, LayerNorm):
            parent, _, name = path.rpartition(".")
            kind = last if path == "norm_final" else in_blocks
            setattr(model.get_submodule(parent), name, kind(part.d_model, part.eps))
    return model


def train_with(norms: str, *, seed: int, batch_size: int = 48, steps: int = 300) -> LanguageModel:
    """Train the standard model of the toy language with norms of this kind.

    All other weights begin the same for each kind, and the batches are the same.
    """
    with seeded(seed):
        model = LanguageModel(toy_config())
    model = with_norms(model, norms)
    train(model, toy_language(), seed=seed, recipe=Recipe(steps=steps, batch_size=batch_size))
    return model


@torch.no_grad()
def disturbances(model: LanguageModel, *, seed: int, batch_size: int = 8) -> dict[str, float]:
    """Return how far a sentence's logits move with five things that are no business of its words.

    The sentence is the first of a batch of `batch_size`. Each number is the largest change at its
    positions (but the last, where the last word itself is changed), as a share of the largest
    logit. The model is used in the mode it is in, and left as it was.
    """
    model, generator = deepcopy(model), torch.Generator().manual_seed(seed)
    pool, counts = toy_language().sample(40 * batch_size, generator)
    pool, lengths = pool[counts.sum(1) <= 10, :11], 1 + counts.sum(1)[counts.sum(1) <= 10]
    ids, others, n = pool[:batch_size], pool[batch_size : 2 * batch_size].clone(), int(lengths[0])
    others[0] = ids[0]
    other_end = ids.clone()
    other_end[0, n - 1] = pool[pool[:, 1] != ids[0, n - 1], 1][0]

    own = model(ids)[0, :n]
    padded = F.pad(ids, (0, 4), value=toy_language().pad_id)
    prefixes = torch.stack([model(ids[:, : t + 1])[0, -1] for t in range(n)])
    found = {
        "four more columns of padding": model(padded)[0, :n] - own,
        "other sentences beside it": model(others)[0, :n] - own,
        "no sentence beside it": model(ids[:1])[0, :n] - own,
        "read prefix by prefix": prefixes - own,
        "another last word": (model(other_end)[0, :n] - own)[:-1],
    }
    return {name: float(change.abs().max() / own.abs().max()) for name, change in found.items()}


@torch.no_grad()
def loss_by_mode(model: LanguageModel, *, seed: int, batch_size: int) -> tuple[float, float]:
    """Return the loss in training and in evaluation mode, in nats per token, on the same batches.

    About 2000 sentences in batches of `batch_size`. The model is left as it was.
    """
    model, generator = deepcopy(model), torch.Generator().manual_seed(seed)
    batches = list(toy_language().batches(max(1, 2000 // batch_size), batch_size, generator))
    losses = []
    for training in (True, False):
        model.train(training)
        each = [float(next_token_loss(model(ids), ids, counts)) for ids, counts in batches]
        losses.append(sum(each) / len(each))
    return losses[0], losses[1]


@recorded(
    settings=[
        {"norms": norms, "batch_size": batch_size}
        for batch_size in (2, 8, 48)
        for norms in ("LayerNorm", "BatchNorm")
    ],
    seeds=[141, 142, 143],
)
def batch_norm(seed: int, norms: str, batch_size: int) -> dict[str, float | list[float]]:
    """Return the loss in both modes, and in both modes the changes that `disturbances` finds."""
    model = train_with(norms, seed=seed, batch_size=batch_size)
    training, evaluation = loss_by_mode(model, seed=seed, batch_size=batch_size)
    return {
        "loss_in_training_mode": training,
        "loss_in_evaluation_mode": evaluation,
        "moved_in_training_mode": list(disturbances(model.train(), seed=seed).values()),
        "moved_in_evaluation_mode": list(disturbances(model.eval(), seed=seed).values()),
    }


@recorded(
    settings=[{"norms": norms, "steps": 300} for norms in NORMS],
    seeds=[141, 142, 143, 144, 145, 146],
)
def instead_of_norm(seed: int, norms: str, steps: int) -> dict[str, float]:
    """Return the exact excess, in nats per token above the floor, in evaluation mode."""
    model = train_with(norms, seed=seed, steps=steps)
    return {"excess": toy_language().evaluate(model).excess}


@recorded(
    settings=[{"norms": norms, "steps": 800} for norms in ("LayerNorm", "BatchNorm", "fixed")],
    seeds=[141, 142, 143],
)
def instead_of_norm_to_the_end(seed: int, norms: str, steps: int) -> dict[str, float]:
    """Do as `instead_of_norm` does, for as long as the standard training."""
    return instead_of_norm.function(seed, norms, steps)


@recorded(settings=[{"gamma": 4.0, "steps": 300}], seeds=[141, 142, 143, 144, 145, 146])
def louder_last_norm(seed: int, gamma: float, steps: int) -> dict[str, float]:
    """Return the excess of a model with LayerNorm throughout, γ of the last one begun larger."""
    with seeded(seed):
        model = LanguageModel(toy_config())
    with torch.no_grad():
        model.get_parameter("norm_final.gamma").fill_(gamma)
    train(model, toy_language(), seed=seed, recipe=Recipe(steps=steps))
    return {"excess": toy_language().evaluate(model).excess}


# What is done to the norms of a Pre-Norm stack: `without` takes one of these parts out, and the
# last entry takes nothing out, but begins γ of the final norm at 10.
CHANGES = ("nothing", "norms in blocks", "final norm", "all norms", "γ of the final norm from 10")


def changed_stack(change: str, n_layers: int, *, seed: int, scale: float = 1.0) -> LanguageModel:
    """Return an untrained narrow stack after one of the `CHANGES` to its norms.

    Every matrix in its blocks is multiplied by `scale`. The weights are the same for each change.

    Raises:
        ValueError: for an unknown change.
    """
    if change not in CHANGES:
        raise ValueError(f"the changes are {'; '.join(CHANGES)}; not {change!r}")
    model = narrow(n_layers, seed=seed)
    with torch.no_grad():
        for parameter in model.blocks.parameters():
            if parameter.ndim == 2:
                parameter.mul_(scale)
    if change == "γ of the final norm from 10":
        return with_head(model, "γ 10")
    return model if change == "nothing" else without(model, change)


class Walk(NamedTuple):
    """Hold what was met on the way through a stack: a number for each block, first to last."""

    mha_reads: list[float]  # deviation of what its attention reads
    ffn_reads: list[float]  # deviation of what its FFN reads
    stands: list[float]  # variance of the stream in front of it
    writes: list[float]  # variance of all that it adds


def deviation(X: Float[Tensor, "*tokens d_model"]) -> float:
    """Return the root of the variance of a token's features, the variance averaged over tokens."""
    return float(X.var(dim=-1, unbiased=False).mean().sqrt())


@torch.no_grad()
def through(model: LanguageModel, *, seed: int) -> Walk:
    """Send 32 sentences, once normalised at the input, through the blocks of a Pre-Norm model.

    A norm that was taken out of the model is passed by.
    """
    ids = toy_language().sample(32, torch.Generator().manual_seed(seed)).ids
    X = model.E(ids) + model.P.weight[: ids.shape[1]]
    X = LayerNorm(X.shape[-1])(X)  # the same start for every model
    walk, mask = Walk([], [], [], []), causal_mask(ids.shape[1])
    for block in (cast(PreNormBlock, each) for each in model.blocks):
        read = block.norm_mha(X)
        H = X + block.mha(read, mask)
        also_read = block.norm_ffn(H)
        new = H + block.ffn(also_read)
        walk.mha_reads.append(deviation(read))
        walk.ffn_reads.append(deviation(also_read))
        walk.stands.append(deviation(X) ** 2)
        walk.writes.append(deviation(new - X) ** 2)
        X = new
    return walk


def sixty_steps(model: LanguageModel, *, seed: int) -> list[float]:
    """Train a model in place; return its losses in nats per token, fewer than 60 if it broke.

    Batches of 32 sentences at the constant rate 3e-3, gradients clipped to length 1. Training
    breaks where a loss or a gradient is no number any more.
    """
    losses: list[float] = []
    recipe = Recipe(steps=60, batch_size=32, lr=3e-3, warm_up=0.0, lr_last=1.0, clip=1.0)
    try:
        train(
            model,
            toy_language(),
            seed=seed,
            recipe=recipe,
            on_step=lambda step, loss: losses.append(loss),
        )
    except ValueError:  # that is how train says that it broke
        if not losses:
            raise
    return losses


@recorded(
    settings=[
        {"n_layers": n_layers, "scale": scale, "change": change}
        for n_layers, scale, changes in (
            (8, 1.0, CHANGES[:2]),
            (24, 1.0, CHANGES),
            (24, 0.3, CHANGES),
        )
        for change in changes
    ],
    seeds=[141, 142, 143, 144, 145, 146],
)
def norms_removed(seed: int, n_layers: int, scale: float, change: str) -> dict[str, float]:
    """Return the first loss, the mean of the last ten that ran, and how many steps ran."""
    losses = sixty_steps(changed_stack(change, n_layers, seed=seed, scale=scale), seed=seed)
    return {
        "first_loss": losses[0],
        "loss": sum(losses[-10:]) / len(losses[-10:]),
        "steps": len(losses),
    }


def stream_sizes(model: LanguageModel, *, seed: int, steps: int = 5) -> list[float]:
    """Begin to train a model, in place, as `sixty_steps` does; return the sizes of its stream.

    That is the rms of what stands behind the last block, on 64 sentences: before the first step,
    and after each.
    """
    last = f"blocks.{len(model.blocks) - 1}"
    ids = toy_language().sample(64, torch.Generator().manual_seed(seed)).ids

    def size() -> float:
        with torch.no_grad(), record(model, [last]) as run:
            model(ids)
        return rms(run[last])

    sizes = [size()]
    recipe = Recipe(steps=steps, batch_size=32, lr=3e-3, warm_up=0.0, lr_last=1.0, clip=1.0)
    train(
        model,
        toy_language(),
        seed=seed,
        recipe=recipe,
        on_step=lambda step, loss: sizes.append(size()),
    )
    return sizes


@recorded(
    settings=[{"n_layers": 24, "change": change} for change in CHANGES[:4]],
    seeds=[141, 142, 143, 144, 145, 146],
)
def stream_at_first(seed: int, n_layers: int, change: str) -> dict[str, list[float]]:
    """Return the `stream_sizes` of the first five steps, weights as drawn."""
    return {"stream": stream_sizes(changed_stack(change, n_layers, seed=seed), seed=seed)}
