"""A small language whose every probability is known, so that a model can be judged exactly."""

import difflib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transformer_block import _checks

PAD, BOS = "<pad>", "<bos>"
Sentence = tuple[str, ...]


@dataclass(frozen=True)
class Family:
    """Name one kind of sentence: how often it comes, and its sentences with their probabilities.

    A sentence is a string of words with spaces between them; a word in square brackets is an
    answer, the place where a model shows that it can do what the family asks.

    >>> Family("fact", 1.0, {"Paris is in [France] .": 1.0}).parsed
    {('Paris', 'is', 'in', 'France', '.'): (1.0, (3,))}
    """

    name: str
    weight: float
    marked: dict[str, float]

    @cached_property
    def parsed(self) -> dict[Sentence, tuple[float, tuple[int, ...]]]:
        """Each sentence with its probability in the family and the places of its answers."""
        out = {}
        for text, p in self.marked.items():
            words = text.split()
            answers = tuple(i for i, word in enumerate(words) if word.startswith("["))
            out[tuple(word.strip("[]") for word in words)] = (p, answers)
        return out


class Batch(NamedTuple):
    """Hold sentences as rows of ids, begun with <bos> and filled up with <pad>."""

    ids: Int[Tensor, "B n"]
    counts: Bool[Tensor, "B n"]  # True: a word of the sentence, to be predicted


class FamilyScore(NamedTuple):
    """Say how well a model speaks one family."""

    excess: float  # nats per token above what is possible, >= 0
    allowed: float  # share of probability given to words the grammar allows
    answer: float  # the same, at the answers only


class Evaluation(NamedTuple):
    """Compare a model with the language, over all sentences and with no sampling."""

    loss: float  # nats per token
    bound: float  # nats per token: the least that is possible
    excess: float  # loss − bound = KL(language ‖ model) per token, >= 0
    allowed: float
    families: dict[str, FamilyScore]


class Trie(NamedTuple):
    """Hold every prefix as a node, every next word of a prefix as an edge."""

    node_p: Float[Tensor, " nodes"]  # probability that a sentence begins with this prefix
    node_family: Float[Tensor, "families nodes"]  # ... and belongs to this family
    node_answer: Float[Tensor, "families nodes"]  # ... and has an answer next
    node_sentence: Int[Tensor, " nodes"]  # one sentence that begins so
    node_length: Int[Tensor, " nodes"]  # words in the prefix
    edge_node: Int[Tensor, " edges"]
    edge_word: Int[Tensor, " edges"]
    edge_p: Float[Tensor, " edges"]  # probability of the word after the prefix


@dataclass(frozen=True)
class ToyLanguage:
    """Hold a language as what it is: sentence → probability.

    Every other number follows: the next word's distribution by summing the sentences that begin
    so, the least possible loss as H(sentence) / E[length] in nats (natural log) per word. Words
    are the tokens; the last word of a sentence is its full stop, so no end token is needed.

    `families` have weights that sum to 1; `vocabulary` is made from them unless given.

    Raises:
        ValueError: for probabilities that do not sum to 1, a sentence in two families, or one
            that is the beginning of another.
    """

    families: tuple[Family, ...]
    vocabulary: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check that this is a distribution over prefix-free sentences."""
        sums = {"the weights": [family.weight for family in self.families]}
        sums |= {f"those of {f.name!r}": list(f.marked.values()) for f in self.families}
        for what, parts in sums.items():
            if abs(math.fsum(parts) - 1) > 1e-9 or min(parts) <= 0:
                raise ValueError(
                    "probabilities must be above 0 and sum to 1; "
                    f"{what} sum to {math.fsum(parts):.6g}, the least is {min(parts):.6g}"
                )
        if len(self.sentences) < sum(len(family.parsed) for family in self.families):
            raise ValueError("a sentence stands twice; give it once, with the sum of both weights")
        ordered = sorted(self.sentences)
        for one, following in pairwise(ordered):
            if following[: len(one)] == one:
                raise ValueError(
                    f"{' '.join(one)!r} is the beginning of {' '.join(following)!r}; "
                    "end each sentence with a full stop of its own"
                )
        if not self.vocabulary:
            words = dict.fromkeys(chain([PAD, BOS], *self.sentences))
            object.__setattr__(self, "vocabulary", tuple(words))

    # Words and ids

    @cached_property
    def id_of(self) -> dict[str, int]:
        """The id of each word."""
        return {word: i for i, word in enumerate(self.vocabulary)}

    @property
    def pad_id(self) -> int:
        """The id that fills up short rows and is never predicted."""
        return self.id_of[PAD]

    @property
    def bos_id(self) -> int:
        """The id every sentence begins with."""
        return self.id_of[BOS]

    def words(self, text: str | Sequence[str]) -> Sentence:
        """Cut a text into words of the vocabulary.

        English is cut at spaces and punctuation, and a capital is dropped where only the small
        form is a word; Chinese is cut by the longest word that fits, from the left.

        Raises:
            ValueError: naming the unknown word and those most like it.

        >>> from transformer_block.language import toy_language
        >>> toy_language().words("The weather is so nice today, I want")
        ('the', 'weather', 'is', 'so', 'nice', 'today', ',', 'I', 'want')
        >>> toy_language().words("今天天气真好，我想去")
        ('今天', '天气', '真', '好', '，', '我', '想', '去')
        """
        pieces = re.findall(r"<\w+>|[,.:]|[^\s,.:]+", text) if isinstance(text, str) else text
        return tuple(chain.from_iterable(self._known(piece) for piece in pieces))

    def _known(self, piece: str) -> Iterator[str]:
        if piece in self.id_of or piece.lower() in self.id_of:
            yield piece if piece in self.id_of else piece.lower()
            return
        start = 0
        while is_chinese(piece) and start < len(piece):
            ends = range(len(piece), start, -1)
            word = next((piece[start:e] for e in ends if piece[start:e] in self.id_of), None)
            if word is None:
                break
            yield word
            start += len(word)
        if start < len(piece):
            near = difflib.get_close_matches(piece[start:], self.vocabulary[2:], cutoff=0.5)
            hint = f"; near it: {', '.join(near)}" if near else "; see language.vocabulary"
            raise ValueError(f"{piece[start:]!r} is not a word of the toy language{hint}")

    def encode(self, text: str | Sequence[str]) -> Int[Tensor, " n"]:
        """Return the ids of a text, begun with <bos>; the text may be empty."""
        return torch.tensor([self.bos_id, *(self.id_of[word] for word in self.words(text))])

    def decode(self, ids: Sequence[int] | Int[Tensor, " n"]) -> Sentence:
        """Return the words of ids, without <bos> and <pad>.

        Raises:
            ValueError: for an id outside the vocabulary.
        """
        numbers = [int(i) for i in ids]
        if wrong := [i for i in numbers if not 0 <= i < len(self.vocabulary)]:
            raise ValueError(f"ids must lie in 0 … {len(self.vocabulary) - 1}, not {wrong[0]}")
        return tuple(self.vocabulary[i] for i in numbers if i not in (self.pad_id, self.bos_id))

    # What is known exactly

    @cached_property
    def sentences(self) -> dict[Sentence, float]:
        """The language itself: each sentence with its probability."""
        return {
            words: family.weight * p
            for family in self.families
            for words, (p, _) in family.parsed.items()
        }

    def next_token_distribution(self, prefix: str | Sequence[str]) -> dict[str, float]:
        """Return the exact probability of each next word, the likeliest first.

        P(w | prefix) = Σ P(sentences that begin with prefix, w) / Σ P(those that begin with prefix)

        Raises:
            ValueError: if no sentence begins so, or the sentence is complete.

        >>> from transformer_block.language import toy_language
        >>> prompt = "The weather is so nice today, I want to go to the"
        >>> {w: round(p, 3) for w, p in toy_language().next_token_distribution(prompt).items()}
        {'park': 0.8, 'lake': 0.2}
        """
        begin = self.words(prefix)
        mass: dict[str, float] = defaultdict(float)
        for sentence, p in self.sentences.items():
            if sentence[: len(begin)] == begin and len(sentence) > len(begin):
                mass[sentence[len(begin)]] += p
        if not mass:
            why = "is complete" if begin in self.sentences else "begins no sentence"
            raise ValueError(f"{join(begin)!r} {why}; the toy language says nothing after it")
        total = math.fsum(mass.values())
        return dict(sorted(((w, p / total) for w, p in mass.items()), key=lambda item: -item[1]))

    @cached_property
    def mean_length(self) -> float:
        """Words in a sentence, on average: E[length]."""
        return math.fsum(p * len(sentence) for sentence, p in self.sentences.items())

    @cached_property
    def entropy_bound(self) -> float:
        """The least loss any model can have, in nats per token: H(sentence) / E[length]."""
        return math.fsum(-p * math.log(p) for p in self.sentences.values()) / self.mean_length

    @cached_property
    def unigram_limit(self) -> float:
        """The least loss, in nats per token, of a model that reads no word at all."""
        return self._limit(lambda sentence, i: "")

    @cached_property
    def bigram_limit(self) -> float:
        """The least loss, in nats per token, of a model that reads the last word only."""
        return self._limit(lambda sentence, i: sentence[i - 1] if i else BOS)

    def _limit(self, read: Callable[[Sentence, int], str]) -> float:
        seen: dict[str, float] = defaultdict(float)
        pairs: dict[tuple[str, str], float] = defaultdict(float)
        for sentence, p in self.sentences.items():
            for i, word in enumerate(sentence):
                seen[read(sentence, i)] += p
                pairs[read(sentence, i), word] += p
        total = math.fsum(-p * math.log(p / seen[key]) for (key, _), p in pairs.items())
        return total / self.mean_length

    @cached_property
    def trie(self) -> Trie:
        """Every prefix at once: the fast form of `next_token_distribution`."""
        nodes: dict[Sentence, int] = {}
        firsts: list[tuple[int, int]] = []  # of each node: a sentence that begins so, its length
        rows: list[tuple[int, int, float, bool]] = []  # visits: family, node, probability, answer
        edges: dict[tuple[int, int], float] = defaultdict(float)
        sentence = 0
        for f, family in enumerate(self.families):
            for words, (share, answers) in family.parsed.items():
                for i, word in enumerate(words):
                    node = nodes.setdefault(words[:i], len(nodes))
                    if node == len(firsts):
                        firsts.append((sentence, i))
                    rows.append((f, node, family.weight * share, i in answers))
                    edges[node, self.id_of[word]] += family.weight * share
                sentence += 1
        families, visited, p, answers_next = zip(*rows, strict=True)
        at = (torch.tensor(families), torch.tensor(visited))
        mass = torch.tensor(p, dtype=torch.float64)
        none = torch.zeros(len(self.families), len(nodes), dtype=torch.float64)
        node_family = none.index_put(at, mass, accumulate=True)
        node_answer = none.index_put(at, mass * torch.tensor(answers_next), accumulate=True)
        node_p = node_family.sum(0)
        edge_node, edge_word = torch.tensor(list(edges)).unbind(1)
        edge_p = torch.tensor(list(edges.values()), dtype=torch.float64) / node_p[edge_node]
        node_sentence, node_length = torch.tensor(firsts).unbind(1)
        return Trie(
            node_p,
            node_family,
            node_answer,
            node_sentence,
            node_length,
            edge_node,
            edge_word,
            edge_p,
        )

    # Batches to train on

    @cached_property
    def _table(self) -> Batch:
        """All sentences as one batch."""
        longest = max(map(len, self.sentences))
        ids = torch.full((len(self.sentences), longest + 1), self.pad_id)
        for row, sentence in zip(ids, self.sentences, strict=True):
            row[: len(sentence) + 1] = self.encode(sentence)
        return Batch(ids, (ids != self.pad_id) & (ids != self.bos_id))

    @cached_property
    def _probabilities(self) -> Tensor:
        return torch.tensor(list(self.sentences.values()), dtype=torch.float64)

    def _rows(self, rows: Int[Tensor, " B"]) -> Batch:
        """Return these sentences, cut to the longest of them."""
        ids, counts = self._table.ids[rows], self._table.counts[rows]
        n = 1 + int(counts.sum(1).max())
        return Batch(ids[:, :n], counts[:, :n])

    def batches(
        self, n_batches: int, batch_size: int, generator: torch.Generator
    ) -> Iterator[Batch]:
        """Yield batches of whole sentences, drawn by their probability.

        Raises:
            ValueError: for sizes below 1.
        """
        _checks.positive(n_batches=n_batches, batch_size=batch_size)
        drawn = torch.multinomial(
            self._probabilities, n_batches * batch_size, replacement=True, generator=generator
        )
        return (self._rows(rows) for rows in drawn.view(n_batches, batch_size))

    def sample(self, n_sentences: int, generator: torch.Generator) -> Batch:
        """Return sentences drawn by their probability, as one batch."""
        return next(self.batches(1, n_sentences, generator))

    # Other languages made from this one

    def only(self, *names: str) -> "ToyLanguage":
        """Return the language of these families alone, with the same vocabulary.

        Raises:
            ValueError: naming the families there are.
        """
        known = [family.name for family in self.families]
        if not names or set(names) - set(known):
            raise ValueError(f"the families are {', '.join(known)}; not {', '.join(names)!r}")
        kept = [family for family in self.families if family.name in names]
        total = math.fsum(family.weight for family in kept)
        return ToyLanguage(
            tuple(replace(family, weight=family.weight / total) for family in kept),
            self.vocabulary,
        )

    def corpus(self, n_sentences: int, generator: torch.Generator) -> "ToyLanguage":
        """Return a finite corpus: sentences drawn once, with their observed frequencies.

        It is a language of its own, with a lower bound than the one it was drawn from.
        """
        _checks.positive(n_sentences=n_sentences)
        drawn = torch.multinomial(
            self._probabilities, n_sentences, replacement=True, generator=generator
        )
        names = [(family, text) for family in self.families for text in family.marked]
        found: dict[str, Counter[str]] = defaultdict(Counter)
        for i in drawn.tolist():
            family, text = names[i]
            found[family.name][text] += 1
        families = tuple(
            Family(
                name,
                times.total() / n_sentences,
                {text: count / times.total() for text, count in times.items()},
            )
            for name, times in found.items()
        )
        return ToyLanguage(families, self.vocabulary)

    # Judging a model

    @torch.no_grad()
    def predict(self, model: nn.Module, prefix: str | Sequence[str]) -> dict[str, float]:
        """Return the model's probability of each next word, the likeliest first."""
        device = next(model.parameters()).device
        logits = model(self.encode(prefix)[None].to(device))[0, -1]
        p = logits.double().softmax(-1).tolist()
        return dict(
            sorted(zip(self.vocabulary, p, strict=True), key=lambda item: item[1], reverse=True)
        )

    @torch.no_grad()
    def _log_q(self, model: nn.Module, chunk: int = 512) -> Float[Tensor, "nodes vocab_size"]:
        """Return the model's log-probabilities after every prefix."""
        trie = self.trie
        device = next(model.parameters()).device
        log_q = torch.empty(len(trie.node_p), len(self.vocabulary), dtype=torch.float64)
        by_length = self._table.counts.sum(1).argsort()  # rows of like length: little padding
        place = torch.empty_like(by_length)
        place[by_length] = torch.arange(len(by_length))
        at = place[trie.node_sentence]
        for start in range(0, len(by_length), chunk):
            logits = model(self._rows(by_length[start : start + chunk]).ids.to(device)).cpu()
            here = ((at >= start) & (at < start + chunk)).nonzero()[:, 0]
            chosen = logits[at[here] - start, trie.node_length[here]]
            log_q[here] = chosen.double().log_softmax(-1)
        return log_q

    def evaluate(self, model: nn.Module) -> Evaluation:
        """Compare a model with the language, exactly.

        excess = Σ_prefix P(prefix) KL(P(· | prefix) ‖ model) / E[length], in nats per token; a
        family's share counts the prefixes of its sentences, per token of its own.

        Raises:
            ValueError: if the model's numbers are not finite.
        """
        trie = self.trie
        log_q = self._log_q(model)[trie.edge_node, trie.edge_word]
        if not log_q.isfinite().all():
            raise ValueError(
                "the model gives an allowed word a probability of 0 or NaN; "
                "train it with a lower learning rate, or start it again"
            )
        zero = torch.zeros_like(trie.node_p)
        kl = zero.index_add(0, trie.edge_node, trie.edge_p * (trie.edge_p.log() - log_q))
        allowed = zero.index_add(0, trie.edge_node, log_q.exp())

        def mean(values: Tensor, weights: Tensor) -> float:
            return float(values @ weights) / max(float(weights.sum()), 1e-300)

        families = {
            family.name: FamilyScore(
                mean(kl, trie.node_family[f]),
                mean(allowed, trie.node_family[f]),
                mean(allowed, trie.node_answer[f]),
            )
            for f, family in enumerate(self.families)
        }
        excess = mean(kl, trie.node_p)
        return Evaluation(
            self.entropy_bound + excess,
            self.entropy_bound,
            excess,
            mean(allowed, trie.node_p),
            families,
        )


def is_chinese(word: str) -> bool:
    """Say whether a word holds a Chinese character or full stop, comma or colon."""
    return any("\u4e00" <= c <= "\u9fff" or c in "，。：" for c in word)


def join(words: Sequence[str]) -> str:
    """Write words as a text: spaces between English words, none in Chinese.

    >>> join(["Paris", "is", "nice", ",", "I", "go", "."]), join(["今天", "真", "好", "。"])
    ('Paris is nice, I go.', '今天真好。')
    """
    text = ""
    for word in words:
        tight = not text or word in ".," or (is_chinese(word) and is_chinese(text[-1]))
        text += word if tight else f" {word}"
    return text
