"""Chapter 08: the head tied to the embedding or not, and pairs joined into tokens."""

from collections import Counter
from itertools import pairwise

import torch
from torch import nn

from transformer_block.experiments.recorded import recorded
from transformer_block.language import toy_language
from transformer_block.language_model import LanguageModel
from transformer_block.training import next_token_loss, toy_config, train

HEADS = ("untied", "tied, N(0, 0.05²)", "tied, N(0, 0.1²)")


def with_head(head: str, *, seed: int) -> LanguageModel:
    """Return the standard model, untrained, with a head of its own or with E as its head.

    A tied matrix is drawn as the book draws it, which at d_model 64 is N(0, 0.05²), or twice as
    large.

    Raises:
        ValueError: for an unknown kind of head.
    """
    if head not in HEADS:
        raise ValueError(f"the heads are {', '.join(HEADS)}; not {head!r}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LanguageModel(toy_config(tie_weights=head != "untied"))
        if head == "tied, N(0, 0.1²)":
            nn.init.normal_(model.E.weight, std=0.1)
    return model


@recorded(settings=[{"head": head} for head in HEADS], seeds=[81, 82, 83])
def tying(seed: int, head: str) -> dict[str, float]:
    """Return the loss before the first step, and the excess after the standard training."""
    model, language = with_head(head, seed=seed), toy_language()
    ids, counts = language.sample(500, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        first = float(next_token_loss(model(ids), ids, counts))
    train(model, language, seed=seed)
    scores = language.evaluate(model)
    return {
        "first_loss": first,
        "excess": scores.excess,
        "copy": scores.families["copy"].excess,
        "parameters": float(sum(p.numel() for p in model.parameters())),
    }


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
        cut = {word: _joined(pieces, best) for word, pieces in cut.items()}
    return made, cut


def _joined(pieces: list[str], pair: tuple[str, str]) -> list[str]:
    out: list[str] = []
    for piece in pieces:
        if out and (out[-1], piece) == pair:
            out[-1] += piece
        else:
            out.append(piece)
    return out
