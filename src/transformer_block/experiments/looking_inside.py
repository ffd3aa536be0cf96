"""Chapter 10: the edge, the head and the neurons that a prediction of a trained model hangs on."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from itertools import permutations
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transformer_block.activations import SiteEdit, cut_edge, intervene, record, set_to, zero_head
from transformer_block.activations.taps import Edit
from transformer_block.experiments.recorded import recorded
from transformer_block.feed_forward import FeedForward
from transformer_block.language import Sentence, ToyLanguage, toy_language
from transformer_block.language_model import LanguageModel
from transformer_block.training import trained

Edits = Mapping[str, Edit | SiteEdit]
FRESH = range(31, 41)  # seeds on which nothing was chosen
KNOCKED = (1, 2, 4, 8, 16, 32, 64, 128)  # how many neurons are silenced at once


# Prompts and what the model answers


class Prompts(NamedTuple):
    """Hold beginnings of sentences, all of one length, and what is right after each."""

    words: list[Sentence]  # without <bos>
    ids: Int[Tensor, "B n"]  # begun with <bos>: word i stands at position i + 1
    right: Bool[Tensor, "B vocab_size"]  # True: a word that the language allows next


def prompts(language: ToyLanguage, family: str, which: Callable[[Sentence], bool]) -> Prompts:
    """Return the beginnings in a family that end before an answer and that `which` accepts.

    Raises:
        ValueError: if there are none, or if their lengths differ.

    >>> facts = prompts(toy_language(), "lives", lambda words: words[0] == "Mary")
    >>> facts.words[0], facts.ids.shape, facts.right.sum()
    (('Mary', 'Brown', 'lives', 'in'), torch.Size([8, 5]), tensor(8))
    """
    follow: dict[Sentence, list[int]] = {}
    for name in (f for f in language.families if f.name == family):
        for sentence, (_, answers) in name.parsed.items():
            for i in answers:
                if which(sentence[:i]):
                    follow.setdefault(sentence[:i], []).append(language.id_of[sentence[i]])
    if len({len(words) for words in follow}) != 1:
        lengths = sorted({len(words) for words in follow})
        raise ValueError(f"prompts need one length; those of {family!r} have {lengths}")
    right = torch.zeros(len(follow), len(language.vocabulary), dtype=torch.bool)
    for row, ids in zip(right, follow.values(), strict=True):
        row[ids] = True
    return Prompts(list(follow), torch.stack([language.encode(w) for w in follow]), right)


@torch.no_grad()
def answers(
    model: LanguageModel, asked: Prompts, edits: Edits | None = None
) -> Float[Tensor, "B vocab_size"]:
    """Return the distribution of the next word after each prompt, under these edits."""
    with intervene(model, edits or {}):
        return model(asked.ids)[:, -1].softmax(dim=-1)


def right_share(model: LanguageModel, asked: Prompts, edits: Edits | None = None) -> float:
    """Return the probability given to right words, on average over the prompts."""
    return float((answers(model, asked, edits) * asked.right).sum(dim=-1).mean())


def pairs(asked: Prompts, at: int) -> Int[Tensor, "pairs 2"]:
    """Return all ordered pairs of prompts that differ in the word at this position, and only there.

    Positions count <bos>, as in an attention map.
    """
    rest = [(*words[: at - 1], *words[at:]) for words in asked.words]
    found = [(i, j) for i, j in permutations(range(len(rest)), 2) if rest[i] == rest[j]]
    return torch.tensor(found)


def apart(P: Float[Tensor, "B vocab_size"], asked: Prompts, at: int) -> float:
    """Return how far the answers of such pairs are apart: mean total variation, ½ Σ |p − q|.

    0: the same distribution; 1: no word in common. If it is 0, the answer does not depend on the
    word at that position.
    """
    one, other = pairs(asked, at).unbind(dim=1)
    return float((P[one] - P[other]).abs().sum(dim=-1).mean() / 2)


# Edges and heads


@torch.no_grad()
def attention_maps(
    model: LanguageModel, language: ToyLanguage, text: str
) -> Float[Tensor, "L h n n"]:
    """Return the attention weights of every head for one text, <bos> before it."""
    with record(model, "blocks.*.mha.A") as run:
        model(language.encode(text)[None])
    return torch.cat(list(run.values()))


@torch.no_grad()
def attention_between(
    model: LanguageModel, asked: Prompts, query: int, key: int
) -> Float[Tensor, "L h"]:
    """Return the weight from query to key in every head, on average over the prompts."""
    with record(model, "blocks.*.mha.A") as run:
        model(asked.ids)
    return torch.stack([A[:, :, query, key].mean(dim=0) for A in run.values()])


def share_without_edges(model: LanguageModel, asked: Prompts) -> Float[Tensor, "n n"]:
    """Return the share of right words with one edge cut in all heads, for each query and key.

    Above the diagonal and at (0, 0) there is nothing to cut (the first token reads only itself):
    NaN.
    """
    n = asked.ids.shape[1]
    share = torch.full((n, n), torch.nan)
    for query in range(1, n):
        for key in range(query + 1):
            edits = {"blocks.*.mha.S": cut_edge(query, key)}
            share[query, key] = right_share(model, asked, edits)
    return share


def lost_by_silence(
    model: LanguageModel, measure: Callable[[], Float[Tensor, " many"]]
) -> Float[Tensor, "L h many"]:
    """Return what each measure loses when one head's addend is left out, for every head."""
    whole = measure()
    lost = []
    for layer in range(model.config.n_layers):
        for head in range(model.config.n_heads):
            with intervene(model, {f"blocks.{layer}.mha.Z": zero_head(head)}):
                lost.append(whole - measure())
    return torch.stack(lost).view(model.config.n_layers, model.config.n_heads, -1)


def missed(model: LanguageModel, asked: Prompts) -> Float[Tensor, "L h"]:
    """Return what the right words lose when one head's addend is left out, for every head."""
    return lost_by_silence(model, lambda: torch.tensor([right_share(model, asked)])).squeeze(-1)


def families_right(model: LanguageModel, language: ToyLanguage) -> Float[Tensor, " families"]:
    """Return the share given to right answers in each family, exactly."""
    return torch.tensor([score.answer for score in language.evaluate(model).families.values()])


class Transplant(NamedTuple):
    """Say what becomes of the answer when a part of one run is put into another."""

    own: float  # share of the words that are right after the prompt itself
    donor: float  # share of those that are right after the prompt the part came from


@torch.no_grad()
def transplant(
    model: LanguageModel, asked: Prompts, at: int, layer: int, heads: Sequence[int]
) -> Transplant:
    """Exchange the addends of some heads, at the last position, between prompts of a pair.

    The two prompts differ in the word at position `at` only; the average is over all such pairs
    whose right words differ.
    """
    one, other = pairs(asked, at).unbind(dim=1)
    differ = ~(asked.right[one] & asked.right[other]).any(dim=-1)
    one, other = one[differ], other[differ]
    name = f"blocks.{layer}.mha.addends"
    with record(model, name) as run:
        model(asked.ids[other])
    last = (slice(None), list(heads), -1)
    with intervene(model, {name: set_to(run[name][last], at=last)}):
        P = model(asked.ids[one])[:, -1].softmax(dim=-1)
    own, donor = ((P * asked.right[side]).sum(dim=-1).mean() for side in (one, other))
    return Transplant(float(own), float(donor))


# Facts in the FFN


@torch.no_grad()
def states(
    model: LanguageModel, language: ToyLanguage, name: str
) -> Float[Tensor, "prefixes features"]:
    """Return an activation at the last word of every prefix of the language, as in its trie."""
    sentences, trie = list(language.sentences), language.trie
    ids = torch.full((len(sentences), 1 + max(map(len, sentences))), language.pad_id)
    for row, sentence in zip(ids, sentences, strict=True):
        row[: len(sentence) + 1] = language.encode(sentence)
    with record(model, name) as run:
        model(ids)
    return run[name][trie.node_sentence, trie.node_length]


def place_of(language: ToyLanguage, words: Sentence) -> int:
    """Return where the state of this prefix stands among `states`."""
    sentences, trie = list(language.sentences), language.trie
    ends = zip(trie.node_sentence.tolist(), trie.node_length.tolist(), strict=True)
    return next(i for i, (s, n) in enumerate(ends) if sentences[s][:n] == words)


def prefix_at(language: ToyLanguage, place: int) -> Sentence:
    """Return the prefix whose state stands at this place among `states`."""
    trie = language.trie
    sentence = list(language.sentences)[int(trie.node_sentence[place])]
    return sentence[: int(trie.node_length[place])]


class Neuron(NamedTuple):
    """Hold one neuron of an FFN: it adds σ(key · x + bias) value to the output."""

    key: Float[Tensor, " d_model"]
    bias: Float[Tensor, ""]
    value: Float[Tensor, " d_model"]

    def speaks(self, X: Float[Tensor, "many d_model"]) -> Float[Tensor, " many"]:
        """Return its activation, GELU, at each input."""
        return F.gelu(X @ self.key + self.bias)


def matches(inputs: Float[Tensor, "prefixes d_model"], fact: int) -> Float[Tensor, " prefixes"]:
    """Return how much of one input is in each: (x − μ)·(y − μ) / |x − μ|², 1 at x itself."""
    centred = inputs - inputs.mean(dim=0)
    return centred @ centred[fact] / centred[fact].square().sum()


def next_match(inputs: Float[Tensor, "prefixes d_model"], fact: int) -> float:
    """Return the best match with one input among all others."""
    match = matches(inputs, fact)
    match[fact] = -torch.inf
    return float(match.max())


def fact_neuron(
    inputs: Float[Tensor, "prefixes d_model"],
    fact: int,
    change: Float[Tensor, " d_model"],
    threshold: float | None = None,
) -> Neuron:
    """Write a neuron by hand that adds 15 times `change`'s direction at one input, 0 elsewhere.

    Its key is the input, measured from the mean μ of all. It is off where the match is below the
    threshold and speaks with strength 10 at the fact; unless given, the threshold lies halfway
    between 1 and the next best match, so that all others are at −10 or below, where GELU is 0 in
    float32.
    """
    mean = inputs.mean(dim=0)
    x = inputs[fact] - mean
    if threshold is None:
        threshold = (1 + next_match(inputs, fact)) / 2
    steep = 10 / (1 - threshold)
    key = steep * x / x.square().sum()
    return Neuron(key, -(key @ mean) - steep * threshold, 1.5 * change / change.norm())


@torch.no_grad()
def with_neuron(model: LanguageModel, neuron: Neuron) -> LanguageModel:
    """Return a copy of the model whose last FFN has one neuron more.

    Raises:
        ValueError: if that FFN is not a `FeedForward`.
    """
    changed = deepcopy(model)
    ffn = changed.blocks[-1].ffn
    if not isinstance(ffn, FeedForward):
        raise ValueError(f"a neuron can be added to a FeedForward, not to a {type(ffn).__name__}")
    wider = FeedForward(ffn.d_model, ffn.W_1.out_features + 1)
    wider.activation = ffn.activation
    wider.W_1.weight.copy_(torch.cat([ffn.W_1.weight, neuron.key[None]]))
    wider.W_1.bias.copy_(torch.cat([ffn.W_1.bias, neuron.bias[None]]))
    wider.W_2.weight.copy_(torch.cat([ffn.W_2.weight, neuron.value[:, None]], dim=1))
    wider.W_2.bias.copy_(ffn.W_2.bias)
    changed.blocks[-1].ffn = wider.requires_grad_(False)
    return changed


@torch.no_grad()
def lost_by_neuron(model: LanguageModel, asked: Prompts, fact: int) -> Float[Tensor, " neurons"]:
    """Return what the right answer to one prompt loses when one neuron is silenced, for each.

    The neurons are those of all blocks, one after another.
    """
    n, lost = model.config.d_ff, []
    whole = facts_without(model, asked, torch.arange(0))[fact]
    each = torch.arange(n)
    for layer in range(model.config.n_layers):
        # row j of the batch is the same prompt with neuron j silenced
        edits = {
            f"blocks.{layer}.ffn.hidden": set_to(
                0.0, at=(each.tolist(), slice(None), each.tolist())
            )
        }
        with intervene(model, edits):
            P = model(asked.ids[fact].expand(n, -1))[:, -1].softmax(dim=-1)
        lost.append(whole - P[:, asked.right[fact]].sum(dim=-1))
    return torch.cat(lost)


def silence_neurons(model: LanguageModel, neurons: Int[Tensor, " k"]) -> Edits:
    """Return the edits that silence these neurons, counted through all blocks."""
    n = model.config.d_ff
    return {
        f"blocks.{layer}.ffn.hidden": set_to(
            0.0, at=(..., (neurons[neurons // n == layer] % n).tolist())
        )
        for layer in range(model.config.n_layers)
    }


# What is recorded over ten seeds


def product_prompts(language: ToyLanguage) -> Prompts:
    """Return all prompts of the kind "Mary bought a new phone , its"."""
    return prompts(language, "product", lambda words: words[-1] == "its")


def product_prompts_zh(language: ToyLanguage) -> Prompts:
    """Return all prompts of the kind 苹果 发布 了 新款 手机 ， 它 的 (fruit is no 新款)."""
    return prompts(language, "product_zh", lambda words: words[-1] == "的" and "新款" in words)


def copy_prompts(language: ToyLanguage) -> Prompts:
    """Return all prompts of the kind "say red blue : red"."""
    return prompts(language, "copy", lambda words: words[3:4] == (":",) and len(words) == 5)


def fact_prompts(language: ToyLanguage) -> Prompts:
    """Return the 64 prompts of the kind "Mary Brown lives in"."""
    return prompts(language, "lives", lambda words: words[-1] == "in")


THING, ITS, OF, IT = 5, 7, 8, 7  # positions, <bos> counted: thing and its; 的 and 它 in Chinese


@recorded(settings=[{"steps": 800}], seeds=FRESH)
def cut_edges(seed: int, steps: int) -> dict[str, float]:
    """Cut the edge from pronoun to product, in English and Chinese, and every other edge."""
    model, language = trained(seed=seed, steps=steps).model, toy_language()
    english, chinese = product_prompts(language), product_prompts_zh(language)
    cut = {"blocks.*.mha.S": cut_edge(ITS, THING)}
    cut_zh = {"blocks.*.mha.S": cut_edge(OF, THING)}
    share = share_without_edges(model, english)
    at_cut = float(share[ITS, THING])
    share[ITS, THING] = torch.nan
    return {
        "whole": right_share(model, english),
        "cut": at_cut,
        "least_other": float(share[~share.isnan()].min()),
        "cut_in_block_1": right_share(model, english, {"blocks.0.mha.S": cut_edge(ITS, THING)}),
        "cut_in_block_2": right_share(model, english, {"blocks.1.mha.S": cut_edge(ITS, THING)}),
        "apart": apart(answers(model, english), english, THING),
        "apart_cut": apart(answers(model, english, cut), english, THING),
        "zh_whole": right_share(model, chinese),
        "zh_cut": right_share(model, chinese, cut_zh),
        "zh_apart_cut": apart(answers(model, chinese, cut_zh), chinese, THING),
        "zh_cut_at_it": right_share(model, chinese, {"blocks.*.mha.S": cut_edge(IT, THING)}),
    }


@recorded(settings=[{"steps": 800}], seeds=FRESH)
def work_of_heads(seed: int, steps: int) -> dict[str, float | list[float]]:
    """Measure each head by its map, by its silence and by a transplant; heads block by block."""
    model, language = trained(seed=seed, steps=steps).model, toy_language()
    asked, copies = product_prompts(language), copy_prompts(language)
    jobs = lost_by_silence(model, lambda: families_right(model, language))
    n_layers, n_heads = model.config.n_layers, model.config.n_heads
    moved = [transplant(model, copies, 3, b, [i]) for b in range(n_layers) for i in range(n_heads)]
    cut = {"blocks.0.mha.S": cut_edge(ITS, THING)}
    with intervene(model, cut):
        after_cut = attention_between(model, asked, ITS, THING)
    second = int(attention_between(model, asked, ITS, THING)[1].argmax())
    return {
        "attention": attention_between(model, asked, ITS, THING).flatten().tolist(),
        "attention_after_cut": after_cut.flatten().tolist(),
        "silence": missed(model, asked).flatten().tolist(),
        "copy_silence": missed(model, copies).flatten().tolist(),
        "copy_own": [answer.own for answer in moved],
        "copy_donor": [answer.donor for answer in moved],
        "its_donor_block_1": transplant(model, asked, THING, 0, range(n_heads)).donor,
        "its_donor_block_2": transplant(model, asked, THING, 1, range(n_heads)).donor,
        "its_own_widest_of_block_2": transplant(model, asked, THING, 1, [second]).own,
        "jobs": jobs.permute(2, 0, 1).flatten(1).tolist(),
    }


@recorded(settings=[{"steps": 800}], seeds=FRESH)
def written_facts(seed: int, steps: int) -> dict[str, float]:
    """Rewrite each of the 64 facts by one neuron; then spoil key, value and threshold."""
    model, language = trained(seed=seed, steps=steps).model.requires_grad_(False), toy_language()
    facts, U = fact_prompts(language), model.W_LM.weight
    inputs = states(model, language, f"blocks.{model.config.n_layers - 1}.norm_ffn")
    old = facts.right.int().argmax(dim=-1)
    cities = torch.tensor(sorted(set(old.tolist())))
    new = cities[(torch.searchsorted(cities, old) + 1) % len(cities)]
    before = answers(model, facts).gather(1, old[:, None])[:, 0]
    draw = torch.Generator().manual_seed(seed)
    rows: dict[str, list[float]] = defaultdict(list)
    for i, words in enumerate(facts.words):
        fact, change = place_of(language, words), U[new[i]] - U[old[i]]
        right = fact_neuron(inputs, fact, change)
        key, value = torch.randn(2, len(change), generator=draw)
        written = {
            "right": right,
            "random_key": right._replace(key=key / key.norm() * right.key.norm()),
            "random_value": right._replace(value=value / value.norm() * right.value.norm()),
            "threshold_0": fact_neuron(inputs, fact, change, threshold=0.0),
            "threshold_half": fact_neuron(inputs, fact, change, threshold=0.5),
        }
        for kind, neuron in written.items():
            P = answers(with_neuron(model, neuron), facts)
            lost = before - P.gather(1, old[:, None])[:, 0]
            rows[f"flips_{kind}"].append(float(P[i].argmax() == new[i]))
            rows[f"new_{kind}"].append(float(P[i, new[i]]))
            lost[i] = 0
            rows[f"harm_{kind}"].append(float(lost.max()))
        rows["next_match"].append(next_match(inputs, fact))
        speaks = right.speaks(inputs)
        speaks[fact] = 0
        rows["loudest_elsewhere"].append(float(speaks.abs().max()))
    return {
        **{f"flips_{kind}": sum(rows[f"flips_{kind}"]) for kind in written},
        **{f"harm_{kind}": sum(rows[f"harm_{kind}"]) / len(old) for kind in written},
        "new": sum(rows["new_right"]) / len(old),
        "next_match": sum(rows["next_match"]) / len(old),
        "closest_match": max(rows["next_match"]),
        "loudest_elsewhere": max(rows["loudest_elsewhere"]),
    }


@recorded(settings=[{"steps": 800}], seeds=FRESH)
def spread_facts(seed: int, steps: int) -> dict[str, float | list[float]]:
    """Silence the neurons a fact loses most by, 1 to 128 at once, for every fourth fact."""
    model, language = trained(seed=seed, steps=steps).model.requires_grad_(False), toy_language()
    facts = fact_prompts(language)
    draw = torch.Generator().manual_seed(seed)
    own, others, chance = torch.zeros(3, len(KNOCKED))
    single = 0.0
    chosen = range(0, len(facts.words), 4)
    for fact in chosen:
        lost = lost_by_neuron(model, facts, fact)
        single = max(single, float(lost.max()))
        order, shuffled = lost.argsort(descending=True), torch.randperm(len(lost), generator=draw)
        for row, k in enumerate(KNOCKED):
            after = facts_without(model, facts, order[:k])
            own[row] += after[fact]
            others[row] += (after.sum() - after[fact]) / (len(after) - 1)
            chance[row] += facts_without(model, facts, shuffled[:k])[fact]
    many = len(chosen)
    return {
        "largest_single_loss": single,
        "own": (own / many).tolist(),
        "others": (others / many).tolist(),
        "random": (chance / many).tolist(),
    }


def facts_without(
    model: LanguageModel, facts: Prompts, neurons: Int[Tensor, " k"]
) -> Float[Tensor, " B"]:
    """Return the share of the right answer to each prompt with these neurons silenced."""
    P = answers(model, facts, silence_neurons(model, neurons))
    return (P * facts.right).sum(dim=-1)
