import math

import pytest
import torch

from transformer_block import LanguageModel, intervene, record, toy_config, toy_language
from transformer_block.experiments import stack

SMALL = {"d_model": 12, "n_heads": 3, "d_ff": 20}
IDS = torch.tensor([[1, 5, 9, 2, 7]])


def small(n_layers=2, seed=31):
    return stack.drawn(toy_config(n_layers=n_layers, **SMALL), seed=seed)


def test_drawing_leaves_the_global_state_alone_and_depends_on_the_seed():
    state = torch.get_rng_state()
    one, same, other = small(), small(), small(seed=32)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(one.E.weight, same.E.weight)
    assert not torch.equal(one.E.weight, other.E.weight)


@pytest.mark.parametrize(
    ("head", "factor"),
    [("as drawn", 1), ("γ 10", 10), ("γ 10, W_LM / 10", 1), ("W_LM × 10", 10)],
)
def test_the_heads_begin_with_logits_of_the_size_they_say(head, factor):
    model = small()
    before = model(IDS)
    other = stack.with_head(model, head)
    assert torch.allclose(other(IDS), factor * before, rtol=1e-4, atol=1e-6)
    assert torch.equal(model(IDS), before), "the model itself is left as it was"


def test_a_larger_gamma_makes_a_step_of_the_head_reach_further():
    reach, step = {}, 0.01 * torch.randn(len(toy_language().vocabulary), 12)
    for head in ("as drawn", "γ 10, W_LM / 10"):
        model = stack.with_head(small(), head)
        before = model(IDS)
        with torch.no_grad():
            model.W_LM.weight.add_(step)
            reach[head] = float((model(IDS) - before).norm())
    assert reach["γ 10, W_LM / 10"] == pytest.approx(10 * reach["as drawn"], rel=1e-3)


def test_without_the_final_norm_the_head_reads_the_stream():
    model = stack.with_head(small(), "no final norm")
    with record(model, ["blocks.1", "logits"]) as run:
        model(IDS)
    assert torch.allclose(run["blocks.1"] @ model.W_LM.weight.T, run["logits"])


def test_an_unknown_head_is_refused():
    with pytest.raises(ValueError, match=r"the heads are as drawn, .*; not 'large'"):
        stack.with_head(small(), "large")


def test_only_what_writes_into_the_stream_is_scaled():
    model = small(n_layers=3)
    scaled = dict(stack.scale_writers(model).named_parameters())
    for name, parameter in model.named_parameters():
        writes = "mha.W_O" in name or "ffn.W_2" in name
        factor = 6**-0.5 if writes else 1.0
        assert torch.allclose(scaled[name], factor * parameter), name


def test_the_sizes_at_the_head_are_those_of_the_formula():
    model = small()
    found = stack.at_the_head(model, seed=3)
    assert found["logits"] == pytest.approx(1 / math.sqrt(12), rel=0.35)
    ids, counts = toy_language().sample(64, torch.Generator().manual_seed(3))
    with torch.no_grad(), record(model, "blocks.1") as run:
        model(ids)
    stream = run["blocks.1"][:, :-1][counts[:, 1:]]
    assert found["stream"] == pytest.approx(float(stream.square().mean().sqrt()), rel=1e-5)
    with torch.no_grad():
        model.W_LM.weight.mul_(1e-3)  # then p barely depends on it, and the gradient shrinks too
    assert stack.at_the_head(model, seed=3)["gradient"] < 0.01 * found["gradient"]


def test_the_beginning_is_looked_at_where_asked():
    found = stack.begin(small(), seed=4, steps=3, look_at=(0, 2, 3))
    assert [len(found[name]) for name in ("losses", "stream", "logits", "gradient")] == [3] * 4
    again = stack.begin(small(), seed=4, steps=3)
    assert again["losses"] == found["losses"], "looking changes nothing"
    assert again["stream"] == []


# Reading after each block


def test_reading_after_all_blocks_is_the_model():
    model = small()
    assert torch.equal(stack.read_after(model, 2)(IDS), model(IDS))
    bare = stack.read_after(model, 0)
    X = model.E(IDS) + model.P.weight[:5]
    assert torch.allclose(bare(IDS), model.W_LM(model.norm_final(X)))
    assert len(model.blocks) == 2


def test_a_fresh_reader_leaves_the_rest_as_it_was():
    model = small()
    reader = stack.fresh_reader(model, 1, seed=9, steps=2)
    assert torch.equal(reader.blocks[0].mha.W_Q.weight, model.blocks[0].mha.W_Q.weight)
    assert torch.equal(reader.E.weight, model.E.weight)
    assert not torch.equal(reader.W_LM.weight, model.W_LM.weight)
    learning = {name for name, p in reader.named_parameters() if p.requires_grad}
    assert learning == {"norm_final.gamma", "norm_final.beta", "W_LM.weight"}


def test_bank_begins_as_one_vector_in_both_languages():
    model = small()
    found = stack.bank(model, toy_language())
    assert {name: len(values) for name, values in found.items()} == {
        "two senses": 3,
        "one sense": 3,
    }
    for values in found.values():
        assert values[0] == pytest.approx(1, abs=1e-6)
        assert max(values[1:]) < 1 - 1e-6


def test_in_the_second_language_only_the_word_after_next_tells_the_banks_apart():
    language = stack.same_next_word()
    for kind in ("central", "river"):
        assert language.next_token_distribution(f"the {kind} bank") == {"has": pytest.approx(1)}
    after = [
        set(language.next_token_distribution(f"the {kind} bank has the"))
        for kind in ("national", "canal")
    ]
    assert after == [{"rate", "tax"}, {"frog", "duck"}]
    toy = toy_language().families
    for ours, theirs in zip(language.families, toy, strict=True):
        assert ours.weight == theirs.weight
        assert (ours.marked == theirs.marked) == (ours.name != "bank")


# Repeated sequences


def test_the_edges_are_those_of_a_pencil():
    found = stack.edges(torch.tensor([[4, 1, 2, 4, 1]]))
    before = [[0] * 5, [1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0]]
    assert found["before"][0].int().tolist() == before
    followed = [[0] * 5, [0] * 5, [0] * 5, [0, 1, 1, 0, 0], [0, 0, 1, 1, 0]]
    assert found["what followed"][0].int().tolist() == followed


def test_hidden_edges_get_no_weight_and_the_rest_sums_to_one():
    config = toy_config(vocab_size=16, n_ctx=32, **SMALL)
    model = stack.drawn(config, seed=5)
    ids = stack.REPEATS.sample(3, torch.Generator().manual_seed(1)).ids
    where = stack.edges(ids)["what followed"]
    with intervene(model, {"blocks.1.mha.S": stack.hide(where)}), record(model, "*.A") as run:
        model(ids)
    A = run["blocks.1.mha.A"]
    assert (A * where[:, None]).sum() == 0
    assert torch.allclose(A.sum(dim=-1), torch.ones(3, 3, 32))
    assert (run["blocks.0.mha.A"] * where[:, None]).sum() > 0


def test_the_looks_are_averaged_over_the_queries_that_need_them():
    model = stack.drawn(toy_config(vocab_size=16, n_ctx=32), seed=5)
    ids = torch.tensor([[3, 1, 4, 9, 5] * 7])[:, :32]
    found = stack.looks(model, ids)
    with torch.no_grad(), record(model, "*.A") as run:
        model(ids)
    A = run["blocks.1.mha.A"][0, 2]
    before = sum(A[t, t - 1] for t in range(1, 5)) / 4
    assert found["before"][1][2] == pytest.approx(float(before), rel=1e-5)
    where = stack.edges(ids)["what followed"][0]
    followed = sum(A[t][where[t]].sum() for t in range(5, 31)) / 26
    assert found["what followed"][1][2] == pytest.approx(float(followed), rel=1e-5)


def test_taken_over_means_the_same_tensors():
    model = LanguageModel(toy_config(**SMALL))
    with intervene(model, stack.taken_over("QV")), record(model, "blocks.*.mha.*") as run:
        model(IDS)
    for name, same in (("Q", True), ("K", False), ("V", True)):
        pair = run[f"blocks.0.mha.{name}"], run[f"blocks.1.mha.{name}"]
        assert torch.equal(*pair) is same
