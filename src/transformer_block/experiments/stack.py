"""Chapter 07: block upon block, the norm before the head, and how the blocks begin."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from transformer_block.ablation import without
from transformer_block.activations import intervene, record
from transformer_block.config import ModelConfig
from transformer_block.experiments.recorded import recorded
from transformer_block.language import RepeatLanguage, ToyLanguage, toy_language
from transformer_block.language_model import LanguageModel
from transformer_block.training import Recipe, next_token_loss, toy_config, train

# The last norm and the head: how the model begins → γ of the last norm, W_LM times this.
# "no final norm" is the one arm in which something is taken out.
HEADS: dict[str, tuple[float, float]] = {
    "as drawn": (1.0, 1.0),
    "no final norm": (1.0, 1.0),
    "γ 10": (10.0, 1.0),
    "γ 10, W_LM / 10": (10.0, 0.1),
    "W_LM × 10": (1.0, 10.0),
}


def with_head(model: LanguageModel, head: str) -> LanguageModel:
    """Return a copy of a Pre-Norm model that begins with another last norm or W_LM.

    The logits are W_LM (γ x̂ + β). A γ of 10 with a tenth of W_LM gives the same first logits,
    but each step of W_LM moves them ten times as far.

    Raises:
        ValueError: for a head that is none of `HEADS`.
    """
    if head not in HEADS:
        raise ValueError(f"the heads are {', '.join(HEADS)}; not {head!r}")
    if head == "no final norm":
        return without(model, "final norm")
    model = copy.deepcopy(model)
    parameters = dict(model.named_parameters())
    gamma, factor = HEADS[head]
    with torch.no_grad():
        parameters["norm_final.gamma"].mul_(gamma)
        parameters["W_LM.weight"].mul_(factor)
    return model


def narrow(n_layers: int, *, seed: int) -> LanguageModel:
    """Return an untrained model of the toy language, half as wide as the standard one."""
    return drawn(toy_config(n_layers=n_layers, d_model=32, n_heads=2, d_ff=128), seed=seed)


def drawn(config: ModelConfig, *, seed: int) -> LanguageModel:
    """Return an untrained model; torch's global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LanguageModel(config)


def scale_writers(model: LanguageModel) -> LanguageModel:
    """Return a copy in which W_O and W₂, which write into the stream, begin times 1/√(2L).

    Source: Radford et al. (2019), section 2.3, where N counts the residual layers, 2L.
    """
    model = copy.deepcopy(model)
    factor = (2 * len(model.blocks)) ** -0.5
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".W_O." in name or ".W_2." in name:  # weights, and the bias where there is one
                parameter.mul_(factor)
    return model


def rms(X: Tensor) -> float:
    """Return the root of the mean square over all numbers of a tensor."""
    return float(X.square().mean().sqrt())


def at_the_head(model: LanguageModel, *, seed: int) -> dict[str, float]:
    """Return sizes on 64 sentences: the last stream, the logits, and the gradient between them.

    `stream` is the rms of X^(L), `logits` their deviation over the vocabulary, `gradient` the
    length of ∂loss/∂X^(L) for one token, averaged (the loss being a sum over tokens).
    """
    ids, counts = toy_language().sample(64, torch.Generator().manual_seed(seed))
    last = f"blocks.{len(model.blocks) - 1}"
    with record(model, [last, "logits"], grad=True) as run:
        logits = model(ids)
        (next_token_loss(logits, ids, counts) * counts.sum()).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    predicting = counts.roll(-1, dims=1)  # positions whose next token counts
    return {
        "stream": rms(run[last].detach()[predicting]),
        "logits": float(logits.detach()[predicting].std(dim=-1).mean()),
        "gradient": float(run.grad(last)[predicting].norm(dim=-1).mean()),
    }


def begin(
    model: LanguageModel, *, seed: int, steps: int, look_at: tuple[int, ...] = ()
) -> dict[str, list[float]]:
    """Train at a constant 3e-3, without warm-up; return the losses, and sizes at some steps.

    The sizes are those of `at_the_head`, before the steps in `look_at` (`steps` is the end).
    """
    found: dict[str, list[float]] = {"losses": [], "stream": [], "logits": [], "gradient": []}

    def look(step: int) -> None:
        if step in look_at:
            for name, size in at_the_head(model, seed=seed).items():
                found[name].append(size)

    def after(step: int, loss: float) -> None:
        found["losses"].append(loss)
        look(step + 1)

    look(0)
    recipe = Recipe(steps=steps, batch_size=32, lr=3e-3, warm_up=0.0, lr_last=1.0)
    train(model, toy_language(), seed=seed, recipe=recipe, on_step=after)
    return found


@recorded(settings=[{"head": head} for head in HEADS], seeds=range(71, 81))
def first_steps(seed: int, head: str) -> dict[str, float | list[float]]:
    """Train 24 blocks for 60 steps; return the first loss, the mean of the last ten, and sizes.

    The sizes are those of `at_the_head` before the steps 0, 5, 20 and at the end.
    """
    model = with_head(narrow(24, seed=seed), head)
    found = begin(model, seed=seed, steps=60, look_at=(0, 5, 20, 60))
    losses = found.pop("losses")
    return {"first_loss": losses[0], "loss": sum(losses[-10:]) / 10, **found}


@recorded(
    settings=[
        {"n_layers": n_layers, "batch_size": batch_size, "steps": steps, "lr": lr, "head": head}
        for n_layers, batch_size, steps, rates in (
            (24, 32, 400, (3e-3, 1e-2)),
            (2, 48, 800, (4e-3, 3e-2)),
        )
        for lr in rates
        for head in ("as drawn", "no final norm", "γ 10, W_LM / 10")
    ],
    seeds=[71, 72, 73],
)
def to_the_end(
    seed: int, n_layers: int, batch_size: int, steps: int, lr: float, head: str
) -> dict[str, float]:
    """Train with warm-up and cosine to the end; return the exact excess and the sizes at the head.

    Two blocks are the standard model, 24 are half as wide.
    """
    whole = drawn(toy_config(), seed=seed) if n_layers == 2 else narrow(n_layers, seed=seed)
    model = with_head(whole, head)
    recipe = Recipe(steps=steps, batch_size=batch_size, lr=lr)
    train(model, toy_language(), seed=seed, recipe=recipe)
    excess = toy_language().evaluate(model).excess
    return {"excess": excess, **at_the_head(model, seed=seed)}


@recorded(settings=[{"scaled": False}, {"scaled": True}], seeds=range(71, 81))
def scaled_start(seed: int, scaled: bool) -> dict[str, float | list[float]]:
    """Train 24 blocks for 60 steps, W_O and W₂ begun as drawn or scaled by 1/√(2L).

    Return the rms of the last stream before the steps 0, 5, 20 and at the end, and the mean loss
    of the last ten steps.
    """
    model = narrow(24, seed=seed)
    if scaled:
        model = scale_writers(model)
    found = begin(model, seed=seed, steps=60, look_at=(0, 5, 20, 60))
    return {"stream": found["stream"], "loss": sum(found["losses"][-10:]) / 10}


# Reading the stream after each block


def read_after(model: LanguageModel, n_blocks: int) -> LanguageModel:
    """Return a copy that ends after its first blocks: its own last norm and head read there."""
    early = copy.deepcopy(model)
    early.blocks = early.blocks[:n_blocks]
    return early


def fresh_reader(
    model: LanguageModel, n_blocks: int, *, seed: int, steps: int = 300
) -> LanguageModel:
    """Do the same with a new last norm and head, which alone are trained; the rest is frozen."""
    early = read_after(model, n_blocks).requires_grad_(False)
    new = drawn(model.config, seed=seed)
    early.norm_final, early.W_LM = new.norm_final, new.W_LM
    train(early, toy_language(), seed=seed, recipe=Recipe(steps=steps))
    return early


SENSES = (("central", "national"), ("river", "canal"))


def same_next_word() -> ToyLanguage:
    """Return the toy language, but for its banks: every one "has", and only then comes what.

    What a bank is decides no word that comes next, but one that comes two words later.
    """
    toy = toy_language()
    things = (("rate", "tax"), ("frog", "duck"))
    marked = {
        f"the {kind} bank has the [{thing}] .": 1 / 8
        for kinds, those in zip(SENSES, things, strict=True)
        for kind, thing in product(kinds, those)
    }
    return ToyLanguage(
        tuple(replace(f, marked=marked) if f.name == "bank" else f for f in toy.families)
    )


@torch.no_grad()
def bank(model: LanguageModel, language: ToyLanguage) -> dict[str, list[float]]:
    """Return the cosine of two states of the token "bank" in X^(0), after block 1, and so on.

    "two senses" is the mean over a money bank beside a river bank, "one sense" that over two of a
    kind. All stand at the same position.
    """
    names = ["X0", *(f"blocks.{i}" for i in range(len(model.blocks)))]
    states: dict[str, list[Tensor]] = {}
    for kind in (*SENSES[0], *SENSES[1]):
        with record(model, names) as run:
            model(language.encode(f"the {kind} bank")[None])
        states[kind] = [run[name][0, -1] for name in names]
    pairs = {"two senses": list(product(*SENSES)), "one sense": list(SENSES)}
    return {
        name: [
            sum(float(torch.cosine_similarity(states[a][i], states[b][i], dim=0)) for a, b in two)
            / len(two)
            for i in range(len(names))
        ]
        for name, two in pairs.items()
    }


@recorded(settings=[{"n_layers": 2}], seeds=[81, 82, 83])
def readings(seed: int, n_layers: int) -> dict[str, list[float]]:
    """Train the standard model with so many blocks; return what stands after 0, 1, … of them.

    `own` is the excess read with its own last norm and head, `fresh` with new ones trained there;
    `two senses` and `one sense` are the cosines of `bank`, `untrained` those of two senses before
    the training, and `same next word` those of two senses in another model, whose language says
    the same word after every bank.
    """
    model = drawn(toy_config(n_layers=n_layers), seed=seed)
    untrained = bank(model, toy_language())["two senses"]
    train(model, toy_language(), seed=seed)
    other = same_next_word()
    twin = drawn(toy_config(n_layers=n_layers, vocab_size=len(other.vocabulary)), seed=seed)
    train(twin, other, seed=seed)
    own = [read_after(model, depth) for depth in range(n_layers + 1)]
    fresh = [fresh_reader(model, depth, seed=seed) for depth in range(n_layers + 1)]
    return {
        "own": [toy_language().evaluate(reader).excess for reader in own],
        "fresh": [toy_language().evaluate(reader).excess for reader in fresh],
        "untrained": untrained,
        "same next word": bank(twin, other)["two senses"],
        **bank(model, toy_language()),
    }


# Repeated sequences

REPEATS = RepeatLanguage()


def repeats_model(n_layers: int, *, seed: int) -> LanguageModel:
    """Train a model of the standard width on repeated sequences: 400 steps of 64."""
    config = toy_config(vocab_size=REPEATS.n_symbols, n_ctx=REPEATS.n, n_layers=n_layers)
    model = drawn(config, seed=seed)
    train(model, REPEATS, seed=seed, recipe=Recipe(steps=400, batch_size=64))
    return model


def edges(ids: Int[Tensor, "B n"]) -> dict[str, Bool[Tensor, "B n n"]]:
    """Say which query would read which key along two kinds of edges.

    "before": the key is the token before the query. "what followed": the key is one of the two
    tokens after an earlier position of the query's own symbol. The second of them knows the first,
    once each token has been told what came before it.
    """
    n = ids.shape[1]
    same = (ids[:, :, None] == ids[:, None, :]).tril(diagonal=-1)
    followed = nn.functional.pad(same, (1, 0))[..., :n] | nn.functional.pad(same, (2, 0))[..., :n]
    before = torch.ones(n, n, dtype=torch.bool).tril(diagonal=-1).triu(diagonal=-1)
    return {"before": before.expand_as(same), "what followed": followed.tril()}


def hide(where: Bool[Tensor, "B n n"]) -> Callable[[Tensor], Tensor]:
    """Return an edit of the scores S that keeps all heads from reading along these edges."""
    return lambda S: S.masked_fill(where[:, None], -math.inf)


@torch.no_grad()
def looks(model: LanguageModel, ids: Int[Tensor, "B n"]) -> dict[str, list[list[float]]]:
    """Return the mean attention of each head of each block along the edges of `edges`.

    "before" is averaged over the queries of the first round, whose symbols are all new, and
    "what followed" over those whose next token is certain.
    """
    asks = nn.functional.pad(REPEATS.certain(ids)[:, 1:], (0, 1))
    first = ~(ids[:, :, None] == ids[:, None, :]).tril(diagonal=-1).any(dim=-1)
    first[:, 0] = False
    queries = {"before": first, "what followed": asks}
    with record(model, "blocks.*.mha.A") as run:
        model(ids)
    return {
        name: [
            [float((A * where[:, None]).sum(dim=-1)[:, h][queries[name]].mean()) for h in range(4)]
            for A in run.values()
        ]
        for name, where in edges(ids).items()
    }


@recorded(settings=[{"n_layers": 1}, {"n_layers": 2}], seeds=[61, 62, 63, 64, 65])
def repeats_by_depth(seed: int, n_layers: int) -> dict[str, float | list[float]]:
    """Train on repeated sequences; return the loss on certain tokens, and after cutting edges.

    `loss` in nats and the share `right` are taken on 500 new sequences. `cut_before` and
    `cut_followed` hold the loss with the edges of `edges` hidden in block 1, in block 2, …;
    `looks_before` and `looks_followed` the attention of the strongest head of each block.
    """
    model = repeats_model(n_layers, seed=seed)
    ids = REPEATS.sample(500, torch.Generator().manual_seed(seed + 1000)).ids
    found = looks(model, ids)
    whole = REPEATS.evaluate(model, ids)
    measured: dict[str, float | list[float]] = {"loss": whole.loss, "right": whole.right}
    for short, (name, where) in zip(("before", "followed"), edges(ids).items(), strict=True):
        measured[f"looks_{short}"] = [max(heads) for heads in found[name]]
        cut = measured[f"cut_{short}"] = []
        for i in range(n_layers):
            with intervene(model, {f"blocks.{i}.mha.S": hide(where)}):
                cut.append(REPEATS.evaluate(model, ids).loss)
    return measured


# Queries, keys and values taken over from the block before


def taken_over(names: Sequence[str] = ("Q", "K", "V")) -> dict[str, Callable[[Tensor], Tensor]]:
    """Return edits, for `intervene`, with which block 2 goes on with block 1's Q, K or V."""
    kept: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[Tensor], Tensor]:
        def edit(T: Tensor) -> Tensor:
            kept[name] = T
            return T

        return edit

    def use(name: str) -> Callable[[Tensor], Tensor]:
        return lambda T: kept[name]

    return {f"blocks.0.mha.{name}": keep(name) for name in names} | {
        f"blocks.1.mha.{name}": use(name) for name in names
    }
