import math
from collections import defaultdict
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from transformer_block.config import ModelConfig
from transformer_block.language import (
    Family,
    ToyLanguage,
    is_chinese,
    join,
    toy_language,
)
from transformer_block.language_model import LanguageModel

PROMPT = "The weather is so nice today, I want to go to the"
L = toy_language()
V = len(L.vocabulary)
# a b . (1/2), a c . (1/6), d . (1/3): entropies a pencil can check
TINY = ToyLanguage(
    (
        Family("one", 2 / 3, {"a [b] .": 3 / 4, "a [c] .": 1 / 4}),
        Family("two", 1 / 3, {"[d] .": 1.0}),
    )
)


class Knows(nn.Module):
    """Predict exactly what a language says, as a model that could learn no more would."""

    def __init__(self, language, temperature=1.0):
        super().__init__()
        self.nothing = nn.Parameter(torch.zeros(1))
        self.language, self.temperature = language, temperature

    def forward(self, ids):
        logits = torch.full((*ids.shape, len(self.language.vocabulary)), -50.0)
        for b, row in enumerate(ids.tolist()):
            for t in range(len(row)):
                try:
                    known = self.language.next_token_distribution(
                        self.language.decode(row[: t + 1])
                    )
                except ValueError:  # after the full stop
                    continue
                for word, p in known.items():
                    logits[b, t, self.language.id_of[word]] = math.log(p) / self.temperature
        return logits


def small_model(language=TINY):
    return LanguageModel(
        ModelConfig(
            vocab_size=len(language.vocabulary),
            n_ctx=16,
            d_model=12,
            n_heads=3,
            n_layers=2,
            d_ff=20,
        )
    )


# The language


def test_a_pencil_gives_the_same_numbers():
    H = -(1 / 2 * math.log(1 / 2) + 1 / 6 * math.log(1 / 6) + 1 / 3 * math.log(1 / 3))
    assert TINY.mean_length == pytest.approx(2 / 3 * 3 + 1 / 3 * 2)
    assert TINY.entropy_bound == pytest.approx(H / (8 / 3))
    assert TINY.next_token_distribution("") == pytest.approx({"a": 2 / 3, "d": 1 / 3})
    assert TINY.next_token_distribution("a") == pytest.approx({"b": 3 / 4, "c": 1 / 4})
    words = {"a": 2 / 3, "b": 1 / 2, "c": 1 / 6, "d": 1 / 3, ".": 1}
    unigram = -sum(p / (8 / 3) * math.log(p / (8 / 3)) for p in words.values())
    assert TINY.unigram_limit == pytest.approx(unigram)
    assert TINY.bigram_limit == pytest.approx(TINY.entropy_bound)


def test_the_entropies_of_all_prefixes_sum_to_the_bound():
    trie = L.trie
    at_edges = -trie.node_p[trie.edge_node] * trie.edge_p * trie.edge_p.log()
    assert float(at_edges.sum() / trie.node_p.sum()) == pytest.approx(L.entropy_bound, abs=1e-12)
    assert float(trie.node_p.sum()) == pytest.approx(L.mean_length, abs=1e-12)
    assert L.entropy_bound < L.bigram_limit < L.unigram_limit < math.log(V)


def test_the_trie_is_the_sum_over_sentences():
    trie, sentences = L.trie, list(L.sentences)
    edges = defaultdict(dict)
    for node, word, p in zip(
        trie.edge_node.tolist(), trie.edge_word.tolist(), trie.edge_p.tolist(), strict=True
    ):
        edges[node][L.vocabulary[word]] = p
    for node in range(0, len(trie.node_p), 97):
        prefix = sentences[trie.node_sentence[node]][: trie.node_length[node]]
        assert edges[node] == pytest.approx(L.next_token_distribution(prefix), abs=1e-12)


def test_the_families_share_the_whole():
    trie = L.trie
    assert torch.allclose(trie.node_family.sum(0), trie.node_p, rtol=0, atol=1e-15)
    root = trie.node_family[:, trie.node_length == 0].flatten().tolist()
    assert root == pytest.approx([family.weight for family in L.families], abs=1e-12)
    assert math.fsum(L.sentences.values()) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (PROMPT, {"park": 0.8, "lake": 0.2}),
        ("今天天气真好，我想去", {"公园": 0.8, "湖边": 0.2}),
        ("苹果发布了新款手机，它的", {"屏幕": 0.6, "电池": 0.4}),
        ("小红吃了新鲜苹果，它的", {"味道": 1.0}),
        ("Apple released a new phone, its", {"screen": 0.6, "battery": 0.4}),
        ("巴黎是", {"法国": 1.0}),
        ("the keys near the table", {"are": 1.0}),
        ("say red blue green : red blue", {"green": 1.0}),
        ("from Tokyo to Rome we fly", {"west": 1.0}),
    ],
)
def test_the_book_s_sentences_are_in_the_language(prompt, expected):
    assert L.next_token_distribution(prompt) == pytest.approx(expected)


def test_the_book_s_sentences_are_whole():
    for text in ("苹果发布了新款手机，它的屏幕很亮。", "巴黎是法国的首都。"):
        assert L.words(text) in L.sentences
        assert join(L.words(text)) == text
    assert L.words("Apple released a new phone, its screen is bright.") in L.sentences


def test_one_name_does_not_tell_the_city_and_two_do():
    lives = L.only("lives").sentences
    for key in (0, 1):
        best = defaultdict(lambda: defaultdict(float))
        for sentence, p in lives.items():
            best[sentence[key]][sentence[4]] += p
        assert sum(max(cities.values()) for cities in best.values()) < 0.35
    assert len({sentence[:2] for sentence in lives}) == len(lives) == 64


def test_the_longest_sentence_fits_the_standard_model():
    assert max(map(len, L.sentences)) + 1 == 16


# Words and ids


@given(st.sampled_from(list(L.sentences)))
def test_every_sentence_survives_the_way_to_ids_and_back(sentence):
    assert L.decode(L.encode(sentence)) == sentence
    assert L.words(join(sentence)) == sentence
    assert L.encode(join(sentence))[0] == L.bos_id


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Paris is the capitol", r"'capitol' is not a word.*capital"),
        ("今天天气真坏", "'坏' is not a word"),
        (["the", "weather is"], "'weather is' is not a word"),
        ("the 123", "'123' is not a word"),
    ],
)
def test_an_unknown_word_is_named_with_its_neighbours(text, said):
    with pytest.raises(ValueError, match=said):
        L.encode(text)


@given(st.text(max_size=12))
def test_any_text_is_cut_or_refused(text):
    try:
        words = L.words(text)
    except ValueError as error:
        assert "is not a word" in str(error)  # noqa: PT017  # either way is right
    else:
        assert set(words) <= set(L.vocabulary)


def test_ids_outside_the_vocabulary_are_refused():
    for wrong in (V, -1):
        with pytest.raises(ValueError, match=f"0 … {V - 1}, not {wrong}"):
            L.decode([1, wrong])


def test_nothing_follows_what_is_complete_or_never_begins():
    with pytest.raises(ValueError, match="is complete"):
        L.next_token_distribution("巴黎是法国的首都。")
    with pytest.raises(ValueError, match="begins no sentence"):
        L.next_token_distribution("park park")


def test_chinese_is_told_by_its_characters():
    assert is_chinese("它")
    assert is_chinese("。")
    assert not is_chinese("café")


@pytest.mark.parametrize(
    ("families", "said"),
    [
        ((Family("f", 1.0, {"a .": 0.5}),), "those of 'f' sum to 0.5"),
        ((Family("f", 0.9, {"a .": 1.0}),), "the weights sum to 0.9"),
        ((Family("f", 1.0, {"a .": 1.5, "b .": -0.5}),), "the least is -0.5"),
        ((Family("f", 0.5, {"a .": 1.0}), Family("g", 0.5, {"a .": 1.0})), "stands twice"),
        ((Family("f", 1.0, {"a b": 0.5, "a b .": 0.5}),), "'a b' is the beginning of 'a b .'"),
    ],
)
def test_what_is_no_language_is_refused(families, said):
    with pytest.raises(ValueError, match=said):
        ToyLanguage(families)


# Batches


def test_a_batch_holds_whole_sentences_and_counts_their_words():
    ids, counts = L.sample(7, torch.Generator().manual_seed(3))
    for row, counted in zip(ids, counts, strict=True):
        sentence = L.decode(row)
        assert sentence in L.sentences
        assert int(counted.sum()) == len(sentence)
        assert counted[1 : len(sentence) + 1].all()
        assert row[0] == L.bos_id
        assert (row[len(sentence) + 1 :] == L.pad_id).all()
    assert ids.shape[1] == 1 + int(counts.sum(1).max())


def test_batches_are_the_same_for_a_seed_and_leave_the_global_state():
    before = torch.get_rng_state()
    one, two, other = (
        [batch.ids for batch in L.batches(3, 5, torch.Generator().manual_seed(s))]
        for s in (8, 8, 9)
    )
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert not all(
        a.shape == b.shape and torch.equal(a, b) for a, b in zip(one, other, strict=True)
    )
    assert len(one) == 3
    assert len(one[0]) == 5
    assert torch.equal(before, torch.get_rng_state())


def test_sentences_come_as_often_as_they_should():
    ids, _ = TINY.sample(6000, torch.Generator().manual_seed(1))
    share = (ids[:, 1] == TINY.id_of["d"]).float().mean()
    assert float(share) == pytest.approx(1 / 3, abs=0.03)


def test_impossible_batches_are_refused():
    for sizes in ((0, 4), (3, 0)):
        with pytest.raises(ValueError, match="at least 1, not 0"):
            L.batches(*sizes, torch.Generator())


# Languages made from it


def test_part_of_the_language_keeps_the_vocabulary():
    lives = L.only("lives", "copy")
    assert lives.vocabulary == L.vocabulary
    assert [family.weight for family in lives.families] == pytest.approx([0.6, 0.4])
    with pytest.raises(ValueError, match=r"the families are weather.*'song'"):
        L.only("song")
    with pytest.raises(ValueError, match="the families are"):
        L.only()


def test_a_finite_corpus_is_a_language_of_what_was_seen():
    corpus = L.corpus(300, torch.Generator().manual_seed(5))
    assert set(corpus.sentences) <= set(L.sentences)
    assert corpus.vocabulary == L.vocabulary
    assert corpus.entropy_bound < L.entropy_bound
    times = [p * 300 for p in corpus.sentences.values()]
    assert times == pytest.approx([round(t) for t in times])


# Judging a model


@torch.no_grad()
def prove_exact(language, model):
    """Compare `evaluate` with a sum over sentences, token by token."""
    loss = mass = 0.0
    for sentence, p in language.sentences.items():
        log_q = model(language.encode(sentence)[None])[0].double().log_softmax(-1)
        for t, word in enumerate(sentence):
            loss -= p * float(log_q[t, language.id_of[word]])
            known = language.next_token_distribution(sentence[:t])
            mass += p * sum(float(log_q[t, language.id_of[w]].exp()) for w in known)
    judged = language.evaluate(model)
    assert judged.loss == pytest.approx(loss / language.mean_length, abs=1e-6)
    assert judged.allowed == pytest.approx(mass / language.mean_length, abs=1e-6)
    assert judged.excess == pytest.approx(judged.loss - language.entropy_bound, abs=1e-12)


def test_the_evaluation_is_the_sum_over_all_sentences():
    prove_exact(TINY, small_model())
    few = L.only("bank", "capital_zh", "weather_zh")
    prove_exact(few, small_model(few))


def test_a_loss_over_every_position_would_be_noticed(caught, monkeypatch):
    right = ToyLanguage._log_q

    def shifted(mistake):
        monkeypatch.setattr(ToyLanguage, "_log_q", mistake)
        prove_exact(TINY, small_model())

    caught(
        shifted,
        lambda self, model: right(self, model).roll(1, 0),
        lambda self, model: right(self, model).exp(),
    )


def test_who_knows_the_language_has_no_excess_and_who_is_unsure_has():
    few = L.only("bank", "capital_zh")
    best = few.evaluate(Knows(few))
    assert best.excess == pytest.approx(0, abs=1e-6)
    assert best.allowed == pytest.approx(1, abs=1e-6)
    assert best.families["bank"].answer == pytest.approx(1, abs=1e-6)
    assert few.evaluate(Knows(few, temperature=2.0)).excess > 0.01


def test_every_excess_is_at_least_zero_and_they_sum_to_the_whole():
    model = small_model(L)
    judged = L.evaluate(model)
    tokens = L.trie.node_family.sum(1) / L.mean_length
    shares = torch.tensor([score.excess for score in judged.families.values()])
    assert (shares >= 0).all()
    assert float(shares.double() @ tokens) == pytest.approx(judged.excess, abs=1e-6)
    assert judged.bound == L.entropy_bound
    assert model.training


def test_evaluation_in_pieces_is_evaluation_in_one():
    few, model = L.only("bank", "product"), small_model(L)
    assert torch.allclose(few._log_q(model, chunk=7), few._log_q(model), rtol=0, atol=1e-5)


def test_a_broken_model_is_not_judged():
    model = small_model()
    with torch.no_grad():
        model.W_LM.weight.fill_(math.nan)
    with pytest.raises(ValueError, match="0 or NaN"):
        TINY.evaluate(model)


def test_a_model_is_asked_for_its_next_word():
    model = small_model()
    answer = TINY.predict(model, "a")
    assert math.fsum(answer.values()) == pytest.approx(1)
    assert list(answer.values()) == sorted(answer.values(), reverse=True)
    logits = model(TINY.encode("a")[None])[0, -1]
    assert next(iter(answer)) == TINY.vocabulary[int(logits.argmax())]


def test_answers_are_marked_where_the_family_asks():
    family = replace(TINY.families[0], name="other")
    assert family.parsed["a", "b", "."] == (3 / 4, (1,))
    for family in L.families:
        assert all(answers for _, answers in family.parsed.values()), family.name
    assert toy_language() is L
