"""The living model's files: what they are made from, and that they are whole."""

import hashlib
from pathlib import Path

import pytest
import torch

from book.tools import living
from transformer_block.language import toy_language
from transformer_block.training import run_job

MADE_HERE = [torch.__version__, torch.backends.cpu.get_cpu_capability()]
MOMENTS = pytest.mark.parametrize("step", living.MOMENTS)
FACTS = living.facts()
REMAKE = "remake the living model's files: make living"


def test_the_files_are_made_from_the_code_as_it_is() -> None:
    assert FACTS["made_from"] == living.made_from(), REMAKE
    assert FACTS["seed"] == living.JOB.seed


@MOMENTS
def test_the_weights_are_those_whose_digest_is_recorded(step: int) -> None:
    data = living.weights(step)
    assert hashlib.sha256(data).hexdigest() == FACTS["digests"][str(step)], REMAKE
    text = (living.FOLDER / f"step-{step}.js").read_text("utf-8")
    assert len(text) == FACTS["letters"][str(step)] <= 300_000


@MOMENTS
def test_the_weights_are_those_of_the_training_rounded_to_16_bits(step: int) -> None:
    """On the machine that made them bit by bit; elsewhere a training differs in the last digits."""
    trained, kept = run_job(living.JOB).at(step), living.weights(step)
    same = FACTS["made_with"] == MADE_HERE
    if same:
        assert living.halved(trained) == kept, REMAKE
    language = toy_language()
    ours, theirs = language.evaluate(trained), language.evaluate(living.model_at(step))
    assert theirs.excess == pytest.approx(ours.excess, abs=1e-4 if same else 0.05)


@pytest.mark.skipif(FACTS["made_with"] != MADE_HERE, reason="its training is not at hand here")
def test_the_rounding_moves_no_probability_by_more_than_the_page_says() -> None:
    language = toy_language()
    rows = [language.encode(words) for words in language.sentences]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=language.pad_id)
    counts = ids[:, 1:] != language.pad_id  # where the language has a next word
    said = (Path(__file__).parents[2] / "book" / "play.md").read_text("utf-8")
    assert "no probability by more than 0.001" in said
    whole = run_job(living.JOB)
    with torch.no_grad():
        for step in living.MOMENTS:
            models = whole.at(step), living.model_at(step)
            p, q = (model(ids[:, :-1]).softmax(-1)[counts] for model in models)
            assert (p - q).abs().max() <= 0.001


def test_the_language_is_the_grammars() -> None:
    language = toy_language()
    assert tuple(FACTS["vocabulary"]) == language.vocabulary
    told = {
        tuple(text.split()): family["weight"] * p
        for family in FACTS["families"]
        for p, texts in family["sentences"]
        for text in texts
    }
    assert told == pytest.approx(language.sentences, rel=1e-12)


def test_what_is_packed_comes_back_and_a_spoilt_text_does_not() -> None:
    data = bytes(range(256)) * 4
    text = living.pack(data)
    assert living.unpack(text) == data
    assert living.pack(data) == text  # no time, no name of a machine in it
    with pytest.raises(Exception, match=r"CRC|end-of-stream|padding|length"):
        living.unpack(text[:-8])
