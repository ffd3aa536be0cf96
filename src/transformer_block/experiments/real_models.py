"""Chapter 11: what each step from this book's block to a modern one buys, in a trained model."""

import math
from dataclasses import asdict
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer_block.activations import intervene
from transformer_block.experiments.recorded import recorded
from transformer_block.experiments.seeds import seeded
from transformer_block.language import RepeatLanguage, toy_language
from transformer_block.language_model import LanguageModel
from transformer_block.modern import ModernConfig, ModernModel
from transformer_block.training import Recipe, toy_config, train

# A step → the fields of the config that it changes. SwiGLU has three matrices in place of two,
# so its d_ff is two thirds: as many parameters, to 3 %.
STEPS: dict[str, dict[str, object]] = {
    "this book's block": {},
    "RMSNorm": {"norm": "rms"},
    "SwiGLU": {"activation": "swiglu", "d_ff": 171},
    "rotary positions": {"positions": "rotary"},
    "2 key heads for 4": {"n_kv_heads": 2},
    "1 key head for 4": {"n_kv_heads": 1},
    "all four, 2 key heads": {
        "norm": "rms",
        "activation": "swiglu",
        "d_ff": 171,
        "positions": "rotary",
        "n_kv_heads": 2,
    },
}


def modern(seed: int, **changes: object) -> ModernModel:
    """Return an untrained model of the standard sizes, with these fields of its config changed."""
    fields = asdict(toy_config()) | changes
    with seeded(seed):
        return ModernModel(ModernConfig(**fields))


@recorded(settings=[{"step": step} for step in STEPS], seeds=[111, 112, 113])
def one_change_at_a_time(seed: int, step: str) -> dict[str, float]:
    """Train the standard model with one change; return its excess, in nats per word, by the end.

    `half_way` is the excess after 400 of the 800 steps.
    """
    run = train(modern(seed, **STEPS[step]), toy_language(), seed=seed, keep_at=(400,))
    return {
        "excess": toy_language().evaluate(run.model).excess,
        "half_way": toy_language().evaluate(run.at(400)).excess,
    }


# Models as they were published


class Published(NamedTuple):
    """Hold a model's config.json as far as it decides sizes, and its number of parameters."""

    config: dict[str, Any]
    parameters: int


def _gpt2(n_embd: int, n_layer: int, n_head: int, parameters: int) -> Published:
    sizes = {"n_embd": n_embd, "n_layer": n_layer, "n_head": n_head}
    return Published(
        {"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, **sizes}, parameters
    )


def _llama(parameters: int, **config: Any) -> Published:
    return Published({"model_type": "llama", "rms_norm_eps": 1e-5, **config}, parameters)


# From the files beside the published weights; the parameters are the numbers in those weights.
PUBLISHED = {
    "GPT-2 small": _gpt2(768, 12, 12, 124_439_808),
    "GPT-2 XL": _gpt2(1600, 48, 25, 1_557_611_200),
    "TinyLlama 1.1B": _llama(
        1_100_048_384,
        vocab_size=32000,
        max_position_embeddings=2048,
        hidden_size=2048,
        num_hidden_layers=22,
        num_attention_heads=32,
        num_key_value_heads=4,
        intermediate_size=5632,
    ),
    "Llama 2 7B": _llama(
        6_738_415_616,
        vocab_size=32000,
        max_position_embeddings=4096,
        hidden_size=4096,
        num_hidden_layers=32,
        num_attention_heads=32,
        intermediate_size=11008,
    ),
    "Llama 3 8B": _llama(
        8_030_261_248,
        vocab_size=128256,
        max_position_embeddings=8192,
        rope_theta=500_000.0,
        hidden_size=4096,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        intermediate_size=14336,
    ),
    "Llama 3 70B": _llama(
        70_553_706_496,
        vocab_size=128256,
        max_position_embeddings=8192,
        rope_theta=500_000.0,
        hidden_size=8192,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
        intermediate_size=28672,
    ),
    "Llama 3.2 1B": _llama(
        1_235_814_400,
        vocab_size=128256,
        max_position_embeddings=131072,
        rope_theta=500_000.0,
        rope_scaling={
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        hidden_size=2048,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        intermediate_size=8192,
        tie_word_embeddings=True,
    ),
}


# Positions that no training has seen

TRAINED_ON = RepeatLanguage(n=32)
LONGER = RepeatLanguage(n=128)


def repeats_model(positions: str, *, seed: int) -> LanguageModel:
    """Train a model that could read 128 tokens on repeated sequences of 32: 400 steps of 64."""
    model = modern(seed, vocab_size=TRAINED_ON.n_symbols, n_ctx=LONGER.n, positions=positions)
    return train(model, TRAINED_ON, seed=seed, recipe=Recipe(steps=400, batch_size=64)).model


@torch.no_grad()
def loss_by_eighth(model: nn.Module, language: RepeatLanguage, *, seed: int) -> list[float]:
    """Return the loss on certain tokens in each eighth of 500 sequences, in nats per token."""
    ids = language.sample(500, torch.Generator().manual_seed(seed)).ids
    counts = language.certain(ids)[:, 1:]
    log_q = model(ids)[:, :-1].log_softmax(dim=-1)
    losses = -log_q.gather(-1, ids[:, 1:, None])[..., 0]
    parts = zip(losses.chunk(8, dim=1), counts.chunk(8, dim=1), strict=True)
    return [float(part[sure].mean()) for part, sure in parts if sure.any()]


def window(S: Float[Tensor, "B h n n_k"]) -> Float[Tensor, "B h n n_k"]:
    """Hide from each query the keys that stand 32 tokens back or more."""
    return S.masked_fill(torch.ones_like(S, dtype=torch.bool).tril(-TRAINED_ON.n), -math.inf)


def beginning(S: Float[Tensor, "B h n n_k"]) -> Float[Tensor, "B h n n_k"]:
    """Hide from each query all keys but those of the first 32 tokens and itself."""
    late = torch.ones_like(S, dtype=torch.bool).tril(-1)
    late[..., : TRAINED_ON.n] = False
    return S.masked_fill(late, -math.inf)


@recorded(
    settings=[{"positions": "learned"}, {"positions": "rotary"}], seeds=[111, 112, 113, 114, 115]
)
def beyond_the_length(seed: int, positions: str) -> dict[str, float | list[float]]:
    """Train on 32 tokens, read 128; return the loss on certain tokens in each eighth of them.

    `within` is the loss at the trained length, `whole` reads 128 tokens as they are, `window` and
    `beginning` with the keys hidden that those edits of the scores S hide, in both blocks.
    """
    model = repeats_model(positions, seed=seed)
    found: dict[str, float | list[float]] = {
        "within": TRAINED_ON.evaluate(
            model, TRAINED_ON.sample(500, torch.Generator().manual_seed(seed)).ids
        ).loss,
        "whole": loss_by_eighth(model, LONGER, seed=seed),
    }
    for edit in (window, beginning):
        with intervene(model, {"blocks.*.mha.S": edit}):
            found[edit.__name__] = loss_by_eighth(model, LONGER, seed=seed)
    return found
