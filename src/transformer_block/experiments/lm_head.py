"""Chapter 08: how a head begins, what decoding keeps of a language, pairs joined into tokens."""

from collections import Counter
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from transformer_block.experiments.recorded import recorded
from transformer_block.experiments.seeds import seeded
from transformer_block.generation import next_token_probs
from transformer_block.language import ToyLanguage, toy_language
from transformer_block.language_model import LanguageModel
from transformer_block.training import Recipe, next_token_loss, toy_config, train

HEADS = (
    "untied",
    "tied",
    "tied, all words × 2",
    "tied, colours × 2",
    "tied, nouns × 2",
    "fixed",
    "fixed, × 8",
)
COLOURS = ("red", "blue", "green", "black", "white", "pink")
NOUNS = ("key", "book", "ring", "coin", "cup", "pen")  # as many words, of another family
MOMENTS = (0, 50, 100, 200, 400, 800)


def with_head(head: str, *, seed: int) -> LanguageModel:
    """Return the standard model, untrained, with one of `HEADS`.

    untied: W_LM is a tensor of its own. tied: W_LM is E. "× 2": these words' rows of E are begun
    twice as large. fixed: W_LM never learns, begun as usual or eight times as large.

    Raises:
        ValueError: for a head that is none of these.
    """
    if head not in HEADS:
        raise ValueError(f"the heads are {'; '.join(HEADS)}; not {head!r}")
    with seeded(seed):
        model = LanguageModel(toy_config(tie_weights=head.startswith("tied")))
    language = toy_language()
    twice = {
        "tied, all words × 2": language.vocabulary,
        "tied, colours × 2": COLOURS,
        "tied, nouns × 2": NOUNS,
    }
    with torch.no_grad():
        model.E.weight[[language.id_of[word] for word in twice.get(head, ())]] *= 2
        if head == "fixed, × 8":
            model.W_LM.weight.mul_(8)
    if head.startswith("fixed"):
        model.W_LM.weight.requires_grad_(False)
    return model


def alike(rows: Tensor) -> float:
    """Return the mean cosine of the rows for each two different `COLOURS`; 0 is unrelated."""
    id_of = toy_language().id_of
    unit = F.normalize(rows[[id_of[word] for word in COLOURS]], dim=-1)
    cosines = unit @ unit.T
    return float(cosines[~torch.eye(len(COLOURS), dtype=torch.bool)].mean())


@recorded(settings=[{"head": head} for head in HEADS], seeds=[81, 82, 83])
def tying(seed: int, head: str) -> dict[str, float | list[float]]:
    """Return the first loss, the excess after the standard training, and how alike colours are.

    The excess is that of the whole language and of the family `copy`, in nats per word. `alike_E`
    and `alike_W_LM` hold the mean cosine of the colours' rows at the `MOMENTS` of the training.
    """
    model, language = with_head(head, seed=seed), toy_language()
    ids, counts = language.sample(500, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        first = float(next_token_loss(model(ids), ids, counts))
    run = train(model, language, seed=seed, keep_at=MOMENTS)
    scores = language.evaluate(model)
    kept = run.snapshots.values()
    return {
        "first_loss": first,
        "excess": scores.excess,
        "copy": scores.families["copy"].excess,
        "alike_E": [alike(weights["E.weight"]) for weights in kept],
        "alike_W_LM": [alike(weights.get("W_LM.weight", weights["E.weight"])) for weights in kept],
    }


# Ways to decode: name → the settings of `next_token_probs`.
WAYS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "greedy": {"temperature": 0},
    "T = ½": {"temperature": 0.5},
    "T = 2": {"temperature": 2.0},
    "top-k 5": {"top_k": 5},
    "top-p 0.9": {"top_p": 0.9},
    "T = 2, top-p 0.9": {"temperature": 2.0, "top_p": 0.9},
}


class Decoded(NamedTuple):
    """Say what one draw of a word risks, on average over all prefixes of the language."""

    wrong: float  # chance to draw a word that the language does not allow there
    lost: float  # how often the language goes on with a word that can no longer be drawn


@torch.no_grad()
def decoded(model: nn.Module, language: ToyLanguage, way: str) -> Decoded:
    """Judge one of `WAYS` to decode, exactly: over every prefix, weighted by how often it comes."""
    trie = language.trie
    texts = [language.encode(sentence) for sentence in language.sentences]
    logits = model(pad_sequence(texts, batch_first=True, padding_value=language.pad_id))
    behind = logits[trie.node_sentence, trie.node_length].double()
    q = next_token_probs(behind, **WAYS[way])[trie.edge_node, trie.edge_word]
    often = trie.node_p[trie.edge_node] / trie.node_p.sum()
    wrong = max(0.0, float(1 - often @ q))  # not −1e-15 where all is right
    return Decoded(wrong, float((often * trie.edge_p)[q == 0].sum()))


@recorded(settings=[{"steps": 100}, {"steps": 800}], seeds=[81, 82, 83])
def decoding(seed: int, steps: int) -> dict[str, list[float]]:
    """Return [wrong, lost] for each way to decode, from a model trained for this many steps."""
    model, language = with_head("untied", seed=seed), toy_language()
    train(model, language, seed=seed, recipe=Recipe(steps=steps))
    return {way: list(decoded(model, language, way)) for way in WAYS}


def join_pairs(words: dict[str, int], n_joins: int) -> tuple[list[str], dict[str, list[str]]]:
    """Make tokens by byte-pair encoding: again and again, join the most frequent pair.

    Args:
        words: each word with how often it occurs.
        n_joins: how many pairs to join.

    Returns:
        The joined tokens in the order they were made, and each word cut into the tokens.
        Among pairs of equal frequency the one that comes first in the alphabet is joined.

    Source: Sennrich, Haddow and Birch (2016), section 3.2.
    """
    cut, made = {word: list(word) for word in words}, []
    for _ in range(n_joins):
        pairs = Counter[tuple[str, str]]()
        for word, times in words.items():
            pairs.update({pair: n * times for pair, n in Counter(pairwise(cut[word])).items()})
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        made.append("".join(best))
        cut = {word: joined(pieces, best) for word, pieces in cut.items()}
    return made, cut


def joined(pieces: list[str], pair: tuple[str, str]) -> list[str]:
    """Join this pair of neighbours wherever it stands in a word, from the left."""
    out: list[str] = []
    for piece in pieces:
        if out and (out[-1], piece) == pair:
            out[-1] += piece
        else:
            out.append(piece)
    return out
