"""Chapter 00: what a trained model says, read from outside; facts that hang on one name or two."""

import copy
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from transformer_block.activations import record
from transformer_block.experiments.recorded import recorded
from transformer_block.experiments.seeds import seeded
from transformer_block.language import ToyLanguage, toy_language
from transformer_block.language_model import LanguageModel
from transformer_block.training import toy_config, train

MOMENTS = (0, 50, 100, 200, 400, 800)
PROMPTS = {
    "park": "The weather is so nice today, I want to go to the",
    "公园": "今天天气真好，我想去",
}


def read_after(model: LanguageModel, n_blocks: int) -> LanguageModel:
    """Return a copy that ends after its first blocks: its own last norm and head read there."""
    early = copy.deepcopy(model)
    early.blocks = early.blocks[:n_blocks]
    return early


@torch.no_grad()
def turns(model: LanguageModel, ids: Integer[Tensor, "1 n"]) -> Float[Tensor, "n_layers n"]:
    """Return the cosine of each token's vector before and after each block."""
    names = ["X0", *(f"blocks.{i}" for i in range(len(model.blocks)))]
    with record(model, names) as seen:
        model(ids)
    stream = torch.stack([seen[name][0] for name in names])
    return torch.cosine_similarity(stream[:-1], stream[1:], dim=-1)


def with_keys(keys: int) -> ToyLanguage:
    """Return the toy language, its facts about persons told by two names or by one.

    With two it is the toy language: "Anna Clark lives in Delhi", and neither name alone tells the
    city. With one each of the 64 persons has a name of their own, "Anna-Clark lives in Delhi": as
    many facts, each as frequent, and the same cities.

    Raises:
        ValueError: for another number.
    """
    if keys not in (1, 2):
        raise ValueError(f"a person has one name here or two, not {keys}")
    toy = toy_language()
    if keys == 2:
        return toy
    lives = next(family for family in toy.families if family.name == "lives")
    joined = {text.replace(" ", "-", 1): p for text, p in lives.marked.items()}
    one = replace(lives, marked=joined)
    return ToyLanguage(tuple(one if family is lives else family for family in toy.families))


@recorded(settings=[{"keys": 2}, {"keys": 1}], seeds=[31, 32, 33, 34, 35, 36])
def from_outside(seed: int, keys: int) -> dict[str, Any]:
    """Train the standard model; persons have two names, as in the toy language, or one.

    `excess` is read after 0, 1, 2 blocks; `chance` is what the model gives to park and 公园;
    `turn` is the largest cosine of a token's vector before and after a block; `facts` and
    `country` are the shares of right cities and of right capitals and countries, at each of
    `MOMENTS`.
    """
    language = with_keys(keys)
    with seeded(seed):
        model = LanguageModel(toy_config(vocab_size=len(language.vocabulary)))
    run = train(model, language, seed=seed, keep_at=MOMENTS)
    scores = [language.evaluate(run.at(step)).families for step in MOMENTS]
    readers = [read_after(model, n_blocks) for n_blocks in range(3)]
    return {
        "excess": [language.evaluate(reader).excess for reader in readers],
        "chance": [language.predict(model, text)[word] for word, text in PROMPTS.items()],
        "facts": [score["lives"].answer for score in scores],
        "country": [score["capital"].answer for score in scores],
        "turn": turns(model, language.encode(PROMPTS["park"])[None]).max().item(),
    }
