import copy
import json
import sys

import pytest
import torch

from book.ext import benchmarks
from book.tools import bench, peers
from transformer_block import LanguageModel, count_parameters


@pytest.fixture(scope="module")
def groups():
    """The peers of each kind, ours first, all with the weights of one model."""
    models = {kind: bench.model_like(kind, bench.TINY[0]) for kind in bench.PEERS}
    return [[make(models[kind]) for make in makers] for kind, makers in bench.PEERS.items()]


@pytest.fixture
def ids():
    return torch.randint(bench.TINY[0].vocab_size, (3, 8))


def test_every_peer_computes_what_ours_does(groups, ids):
    names = [peer.name for group in groups for peer in group]
    assert names == [
        "this book",
        "nanoGPT's layout",
        "nn.TransformerEncoder",
        "Hugging Face GPT-2",
        "this book",
        "Hugging Face Llama",
    ]
    for mine, *others in groups:
        for peer in others:
            peer.model.eval()
            peer.check(mine.model, ids)


@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_peer_that_computes_something_else_is_refused(groups, ids, place):
    peer = copy.deepcopy(groups[0][place])
    with torch.no_grad():
        next(p for p in peer.model.parameters() if p.ndim == 2).mul_(1.1)
    logits = (lambda given: peer.model(given).logits) if place == 3 else peer.model
    wrong = peers.Peer(peer.name, peer.model, logits, None)
    with pytest.raises(ValueError, match=r"are off by .*; it is another model"):
        wrong.check(groups[0][0].model, ids)


def test_those_with_a_cache_write_the_same_tokens(groups):
    prompts = torch.randint(bench.TINY[0].vocab_size, (2, 3))
    for group in groups:
        texts = [peer.write(prompts, 4) for peer in group if peer.write]
        assert len(texts) == 2
        assert torch.equal(*texts)


def test_all_take_turns_and_the_first_round_does_not_count():
    seen = []
    runs = {name: lambda name=name: seen.append(name) for name in "abc"}
    took = bench.take_turns(runs, rounds=4)
    assert {name: len(times) for name, times in took.items()} == dict.fromkeys("abc", 4)
    rounds = [tuple(seen[i : i + 3]) for i in range(0, len(seen), 3)]
    assert len(rounds) == 5
    assert all(set(one) == set("abc") for one in rounds)
    assert len(set(rounds)) > 1, "the order changes"


def test_an_exponent_is_found_again():
    assert bench.exponent([1, 2, 4, 8], [5 * n**1.5 for n in (1, 2, 4, 8)]) == pytest.approx(1.5)


def test_quartiles_are_those_of_the_ratios():
    assert bench.quartiles([1, 2, 3, 4, 5]) == [2, 3, 4]


def test_the_quick_run_gives_the_whole_page(tmp_path, monkeypatch):
    out = tmp_path / "found.json"
    monkeypatch.setattr("sys.argv", ["bench", "--quick", "--out", str(out)])
    bench.main()
    page = benchmarks.tables(json.loads(out.read_text("utf-8")))
    for peer in ("nanoGPT's layout", "nn.TransformerEncoder", "Hugging Face Llama"):
        assert peer in page
    assert "| nanoGPT's layout | **" in page
    assert "| L | 1 … 2 |" in page


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what a process holds")
def test_a_training_step_holds_its_gradients_and_moments():
    size = bench.Size(d_model=256, n_layers=4, n_heads=4, n=8, batch=1)
    row = bench.added(size, "GPT-2", 1)
    assert (row["peer"], row["like"]) == ("nanoGPT's layout", "GPT-2")
    weights = count_parameters(LanguageModel(size.gpt())) * 4 / 1e6
    assert 2.5 * weights < row["megabytes"] < 5 * weights


def test_the_page_says_where_others_are_faster():
    row = {"size": "s", "task": "forward", "peer": "A"}
    assert (
        "In 1 of 2 cells the other is faster by more than 2 %; most so A, forward, s: 0.90."
        in (
            benchmarks.ratios([{**row, "ratio": [0.8, 0.9, 1]}, {**row, "ratio": [1, 1.1, 1.2]}])[
                -1
            ]
        )
    )
    assert "In none of 1 cells" in benchmarks.ratios([{**row, "ratio": [0.9, 1.0, 1.1]}])[-1]


def test_the_stored_numbers_are_of_every_size_and_peer():
    stored = json.loads(bench.RESULTS.read_text("utf-8"))
    found = {(row["size"], row["task"], row["peer"]) for row in stored["ratios"]}
    peers_with_cache = {"Hugging Face GPT-2", "Hugging Face Llama"}
    for size in bench.SIZES:
        for task in ("forward", "training step"):
            for peer in (*peers_with_cache, "nanoGPT's layout", "nn.TransformerEncoder"):
                assert (size.name, task, peer) in found, "run: make bench"
        for task in ("writing, 1 text", "writing, 8 texts"):
            for peer in peers_with_cache:
                assert (size.name, task, peer) in found, "run: make bench"
