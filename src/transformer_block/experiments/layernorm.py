"""Chapter 04: BatchNorm in the place of LayerNorm, and norms taken out."""

from copy import deepcopy

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from transformer_block import _checks
from transformer_block.experiments.deep_stacks import deep_model, first_steps
from transformer_block.experiments.recorded import recorded
from transformer_block.experiments.seeds import seeded
from transformer_block.language import toy_language
from transformer_block.language_model import LanguageModel
from transformer_block.norm import LayerNorm
from transformer_block.training import Recipe, next_token_loss, toy_config, train

NORMS = ("layer", "batch")


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


def with_batch_norm(model: LanguageModel) -> LanguageModel:
    """Return a copy of a model in which every LayerNorm is a fresh BatchNorm over tokens."""
    model = deepcopy(model)
    for path, part in list(model.named_modules()):
        if isinstance(part, LayerNorm):
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, BatchNormOverTokens(part.d_model, part.eps))
    return model


def train_with_norm(
    norm: str, *, seed: int, batch_size: int = 48, steps: int = 300
) -> LanguageModel:
    """Train the standard model of the toy language with LayerNorm or BatchNorm throughout.

    Raises:
        ValueError: for an unknown norm.
    """
    if norm not in NORMS:
        raise ValueError(f"norm must be one of {', '.join(NORMS)}, not {norm!r}")
    with seeded(seed):
        model = LanguageModel(toy_config())
    if norm == "batch":
        model = with_batch_norm(model)
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
        {"norm": norm, "batch_size": batch_size}
        for batch_size in (8, 2, 48)
        for norm in ("layer", "batch")
    ],
    seeds=[41, 42, 43],
)
def batch_norm(seed: int, norm: str, batch_size: int) -> dict[str, float | list[float]]:
    """Return the loss in both modes, and in both modes the changes that `disturbances` finds."""
    model = train_with_norm(norm, seed=seed, batch_size=batch_size)
    training, evaluation = loss_by_mode(model, seed=seed, batch_size=batch_size)
    return {
        "loss_in_training_mode": training,
        "loss_in_evaluation_mode": evaluation,
        "moved_in_training_mode": list(disturbances(model.train(), seed=seed).values()),
        "moved_in_evaluation_mode": list(disturbances(model.eval(), seed=seed).values()),
    }


@recorded(
    settings=[
        {"kind": kind, "n_layers": n_layers, "scale": scale}
        for n_layers, scale, kinds in (
            (8, 1.0, ("pre-norm", "no norms in blocks")),
            (24, 1.0, ("pre-norm", "no norms in blocks", "no final norm", "no norms")),
            (24, 0.3, ("pre-norm", "no norms in blocks", "no final norm", "no norms")),
        )
        for kind in kinds
    ],
    seeds=[41, 42, 43],
)
def norms_removed(seed: int, kind: str, n_layers: int, scale: float) -> dict[str, float]:
    """Return the mean loss of the last ten steps that ran, in nats per token, and their number.

    Sixty steps were asked for, with gradients clipped at 1.
    """
    model = deep_model(kind, n_layers, seed=seed, scale=scale)
    losses = first_steps(model, seed=seed, steps=60, clip=1.0).losses
    return {"loss": sum(losses[-10:]) / len(losses[-10:]), "steps": len(losses)}
