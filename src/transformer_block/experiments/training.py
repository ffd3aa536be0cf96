"""Chapter 09: models without one of their parts, parts trained in turn, and jobs of heads."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer_block.ablation import freeze_all_but
from transformer_block.activations import intervene, record, zero_head
from transformer_block.experiments.recorded import recorded
from transformer_block.language import toy_language
from transformer_block.language_model import LanguageModel
from transformer_block.training import Job, Recipe, TrainingRun, toy_config, train

# what is removed → the settings that change, and the part that `ablation.without` takes out
REMOVED: dict[str, tuple[dict[str, object], str | None]] = {
    "nothing": ({}, None),
    "attention": ({}, "attention"),
    "FFN": ({}, "ffn"),
    "σ in the FFN": ({"activation": "identity"}, None),
    "norms in blocks": ({}, "norms in blocks"),
    "all norms": ({}, "all norms"),
    "residual": ({}, "residual"),
    "Pre-Norm, for Post-Norm": ({"norm_place": "post"}, None),
}
TURNS: dict[str, tuple[tuple[str, ...], ...]] = {
    "all together": (("attention", "ffn", "head"),),
    "attention, FFN, head": (("attention",), ("ffn",), ("head",)),
    "head, attention, FFN": (("head",), ("attention",), ("ffn",)),
}
PHONE = "Mary bought a new phone, its"


def job_without(
    removed: str, *, seed: int, n_layers: int = 2, n_heads: int = 4, steps: int = 400
) -> Job:
    """Describe a training on the toy language of a model from which something was removed.

    Raises:
        ValueError: for something that is not in `REMOVED`.
    """
    if removed not in REMOVED:
        raise ValueError(f"what can be removed is {', '.join(REMOVED)}; not {removed!r}")
    changes, part = REMOVED[removed]
    config = toy_config(n_layers=n_layers, n_heads=n_heads, **changes)
    return Job(config=config, seed=seed, recipe=Recipe(steps=steps), without=part)


def train_in_turn(turns: str, *, seed: int, steps: int) -> LanguageModel:
    """Train attention, FFN and head in `TURNS`, each turn with an equal share of the steps.

    A turn is a training of its own, from warm-up to the last small steps, on batches of its own.
    Only the parts whose turn it is learn; embeddings and norms stay as drawn in all turns.

    Raises:
        ValueError: for unknown turns, or steps that cannot be shared out.
    """
    if turns not in TURNS:
        raise ValueError(f"the turns are {'; '.join(TURNS)}; not {turns!r}")
    parts = TURNS[turns]
    if steps % len(parts):
        raise ValueError(f"{len(parts)} turns need a number of steps they divide; {steps} is not")
    model, recipe = Job(seed=seed).model(), Recipe(steps=steps // len(parts))
    for turn, learning in enumerate(parts):
        train(
            freeze_all_but(model, *learning), toy_language(), seed=seed + 100 * turn, recipe=recipe
        )
    return model


@torch.no_grad()
def antecedent(model: LanguageModel) -> float:
    """Return the attention from "its" to "phone", in the head that gives most."""
    ids = toy_language().encode(PHONE)[None]
    with record(model, "blocks.*.mha.A") as run:
        model(ids)
    return max(float(A[0, :, -1, -3].max()) for A in run.values())


def surprise(model: nn.Module) -> float:
    """Return KL(language ‖ model), in nats, of the one word behind "a new phone, its"."""
    language = toy_language()
    q = language.predict(model, PHONE)
    p = language.next_token_distribution(PHONE)
    return sum(float(torch.tensor(p[word] / q[word]).log()) * p[word] for word in p)


def harm(model: LanguageModel) -> Float[Tensor, "families heads"]:
    """Return what each family's right answers lose when a head is silenced; 0 where they gain.

    The heads are those of all blocks, from the first block's first to the last block's last.
    """
    language = toy_language()
    whole, columns = language.evaluate(model).families, []
    for layer in range(model.config.n_layers):
        for head in range(model.config.n_heads):
            with intervene(model, {f"blocks.{layer}.mha.Z": zero_head(head)}):
                now = language.evaluate(model).families
            columns.append([whole[name].answer - now[name].answer for name in whole])
    return torch.tensor(columns).T.clamp(min=0)


def moments(steps: int) -> tuple[int, ...]:
    """Return the start, a sixteenth, an eighth, a quarter, a half, and the end of a training."""
    return 0, steps // 16, steps // 8, steps // 4, steps // 2, steps


@recorded(
    settings=[
        {"removed": removed, "n_layers": n_layers, "n_heads": n_heads, "steps": steps}
        for removed, n_layers, n_heads, steps in (
            ("attention", 2, 4, 400),
            *((other, 2, 4, 400) for other in REMOVED if other != "attention"),
            ("nothing", 2, 1, 400),
            ("nothing", 8, 4, 100),
            ("residual", 8, 4, 100),
            ("nothing", 1, 1, 800),
            ("σ in the FFN", 1, 1, 800),
            ("FFN", 1, 1, 800),
            ("nothing", 2, 4, 800),
            ("FFN", 2, 4, 800),
            ("nothing", 2, 1, 800),
            ("nothing", 1, 4, 800),
        )
    ],
    seeds=[21, 22, 23],
)
def without_a_part(
    seed: int, removed: str, n_layers: int, n_heads: int, steps: int
) -> dict[str, float | list[float]]:
    """Return loss and excess in nats per token, and each family's chance of a right answer."""
    job = job_without(removed, seed=seed, n_layers=n_layers, n_heads=n_heads, steps=steps)
    found = toy_language().evaluate(job.run().model)
    answers = [family.answer for family in found.families.values()]
    return {"loss": found.loss, "excess": found.excess, "answers": answers}


@recorded(
    settings=[{"turns": turns, "steps": steps} for steps in (402, 1200) for turns in TURNS],
    seeds=[21, 22, 23],
)
def in_turn(seed: int, turns: str, steps: int) -> dict[str, float]:
    """Return the excess in nats per token, when all turns are over."""
    return {"excess": toy_language().evaluate(train_in_turn(turns, seed=seed, steps=steps)).excess}


@recorded(settings=[{"steps": 16}, {"steps": 800}], seeds=[21, 22, 23])
def jobs_of_heads(seed: int, steps: int) -> dict[str, list[float] | list[list[float]]]:
    """Return attention to the antecedent and surprise at each of the `moments`, and the harm."""
    run: TrainingRun = Job(seed=seed, recipe=Recipe(steps=steps), keep_at=moments(steps)).run()
    models = [run.at(step) for step in moments(steps)]
    return {
        "attention": [antecedent(model) for model in models],
        "surprise": [surprise(model) for model in models],
        "harm": harm(run.model).tolist(),
    }


@recorded(
    settings=[
        {"removed": removed, "lr": lr}
        for lr in (1e-3, 8e-3)
        for removed in ("nothing", "FFN", "all norms", "residual", "Pre-Norm, for Post-Norm")
    ],
    seeds=[21, 22, 23],
)
def at_other_rates(seed: int, removed: str, lr: float) -> dict[str, float]:
    """Return the excess in nats per token after 400 steps at another learning rate."""
    job = job_without(removed, seed=seed)
    run = replace(job, recipe=replace(job.recipe, lr=lr)).run()
    return {"excess": toy_language().evaluate(run.model).excess}


@recorded(
    settings=[{"removed": removed} for removed in ("nothing", "residual")], seeds=[21, 22, 23]
)
def eight_blocks_slowly(seed: int, removed: str) -> dict[str, float]:
    """Return the loss of 8 blocks in nats per token after 400 small steps, at 3e-4."""
    job = job_without(removed, seed=seed, n_layers=8)
    run = replace(job, recipe=replace(job.recipe, lr=3e-4)).run()
    return {"loss": toy_language().evaluate(run.model).loss}


@recorded(
    settings=[{"removed": removed} for removed in ("nothing", "FFN", "σ in the FFN")],
    seeds=list(range(31, 39)),
)
def more_seeds(seed: int, removed: str) -> dict[str, float]:
    """Return the excess in nats per token after 400 steps, for three lines of the table."""
    return {"excess": toy_language().evaluate(job_without(removed, seed=seed).run().model).excess}


@recorded(
    settings=[
        {"n_layers": n_layers, "n_heads": n_heads, "d_ff": d_ff}
        for n_layers, n_heads, d_ff in (
            (1, 1, 256),
            (1, 2, 256),
            (1, 4, 256),
            (2, 1, 256),
            (1, 1, 640),  # the parameters of two blocks, in one
        )
    ],
    seeds=[31, 32, 33, 34, 35],
)
def heads_or_depth(
    seed: int, n_layers: int, n_heads: int, d_ff: int
) -> dict[str, float | list[float]]:
    """Return the excess after 800 steps, and each family's chance of a right answer."""
    config = toy_config(n_layers=n_layers, n_heads=n_heads, d_ff=d_ff)
    found = toy_language().evaluate(Job(config=config, seed=seed).run().model)
    answers = [family.answer for family in found.families.values()]
    return {"excess": found.excess, "answers": answers}


def learner(learns: str, *, seed: int, head_times: int) -> LanguageModel:
    """Return a fresh model of which one part learns; W_LM begins `head_times` larger than usual."""
    model = Job(seed=seed, only=(learns,)).model()
    with torch.no_grad():
        model.W_LM.weight.mul_(head_times)
    return model


@recorded(
    settings=[
        {"learns": learns, "head_times": times}
        for learns, times in (("head", 1), ("attention", 1), ("attention", 8), ("attention", 32))
    ],
    seeds=[21, 22, 23],
)
def one_part_learns(seed: int, learns: str, head_times: int) -> dict[str, float]:
    """Return the loss in nats per token, before and after 400 steps in which one part learns."""
    language, model = toy_language(), learner(learns, seed=seed, head_times=head_times)
    before = language.evaluate(model).loss
    run = train(model, language, seed=seed, recipe=Recipe(steps=400))
    return {"before": before, "after": language.evaluate(run.model).loss}
