import pytest
import torch

from transformer_block import (
    LanguageModel,
    cut_edge,
    intervene,
    record,
    set_to,
    toy_config,
    toy_language,
    zero_head,
)
from transformer_block.experiments import looking_inside as inside
from transformer_block.experiments.recorded import study

LANGUAGE = toy_language()
ITS = inside.product_prompts(LANGUAGE)
FACTS = inside.fact_prompts(LANGUAGE)
SIZES = {"d_model": 24, "n_heads": 3, "d_ff": 20}


def model(**changes):
    """Return an untrained model whose words and heads make a difference."""
    torch.manual_seed(3)
    made = LanguageModel(toy_config(**SIZES | changes)).requires_grad_(False)
    for weight in (made.E.weight, made.W_LM.weight):
        torch.nn.init.normal_(weight)
    return made


# Prompts and answers


@pytest.mark.parametrize(
    ("made", "many", "last", "rights"),
    [
        (ITS, 60, "its", 2),
        (inside.product_prompts_zh(LANGUAGE), 16, "的", 2),
        (FACTS, 64, "in", 1),
    ],
)
def test_all_prompts_of_a_kind_are_found_with_all_that_is_right(made, many, last, rights):
    assert len(made.words) == len(set(made.words)) == len(made.ids) == many
    assert {words[-1] for words in made.words} == {last}
    assert (made.right.sum(dim=1) == rights).all()
    for words, row in zip(made.words, made.right, strict=True):
        allowed = LANGUAGE.next_token_distribution(words)
        assert {LANGUAGE.vocabulary[i] for i in row.nonzero()} <= allowed.keys()


def test_the_positions_of_the_chapter_are_those_of_the_words():
    assert {words[inside.ITS - 1] for words in ITS.words} == {"its"}
    assert {words[inside.THING - 1] for words in ITS.words} == {
        "phone",
        "car",
        "camera",
        "watch",
        "lamp",
        "bike",
    }
    chinese = inside.product_prompts_zh(LANGUAGE).words
    assert {(words[inside.IT - 1], words[inside.OF - 1]) for words in chinese} == {("它", "的")}
    assert {words[inside.THING - 1] for words in chinese} == {"手机", "汽车", "相机", "手表"}


def test_copying_is_asked_for_the_second_colour():
    asked = inside.copy_prompts(LANGUAGE)
    assert len(asked.words) == 30
    for words, right in zip(asked.words, asked.right, strict=True):
        assert words[1] == words[4]
        assert [LANGUAGE.vocabulary[i] for i in right.nonzero()] == [words[2]]


@pytest.mark.parametrize(("which", "lengths"), [(lambda _: False, r"\[\]"), (len, r"\[4, 5")])
def test_prompts_of_no_or_of_many_lengths_are_refused(which, lengths):
    with pytest.raises(ValueError, match=rf"those of 'copy' have {lengths}"):
        inside.prompts(LANGUAGE, "copy", lambda words: bool(which(words)))


def test_a_share_is_the_mean_of_what_right_words_get():
    P = inside.answers(model(), FACTS)
    by_hand = [P[i, int(FACTS.right[i].nonzero())].item() for i in range(64)]
    assert inside.right_share(model(), FACTS) == pytest.approx(sum(by_hand) / 64, rel=1e-5)


def test_a_pair_differs_in_one_word_and_both_orders_are_there():
    found = inside.pairs(ITS, inside.THING).tolist()
    assert len(found) == 10 * 6 * 5  # ten carriers, six products
    for i, j in found:
        differ = [
            k for k, (a, b) in enumerate(zip(ITS.words[i], ITS.words[j], strict=True)) if a != b
        ]
        assert differ == [inside.THING - 1]
        assert [j, i] in found


def test_answers_are_0_apart_if_equal_and_1_if_nothing_is_common():
    same = torch.full((60, 5), 0.2)
    assert inside.apart(same, ITS, inside.THING) == pytest.approx(0)
    things = sorted({words[4] for words in ITS.words})
    own = torch.eye(6)[[things.index(words[4]) for words in ITS.words]]
    assert inside.apart(own, ITS, inside.THING) == pytest.approx(1)
    assert inside.apart((own + own.roll(1, 1)) / 2, ITS, inside.THING) == pytest.approx(0.8)


# Edges and heads


def test_every_edge_is_cut_by_itself():
    made = model()
    share = inside.share_without_edges(made, ITS)
    hidden = torch.ones(8, 8).triu(1).bool()
    hidden[0, 0] = True
    assert torch.equal(share.isnan(), hidden)
    with intervene(made, {"blocks.*.mha.S": cut_edge(4, 2)}):
        by_hand = (made(ITS.ids)[:, -1].softmax(-1) * ITS.right).sum(-1).mean()
    assert share[4, 2].item() == pytest.approx(by_hand.item())
    assert share[4, 2] != share[2, 2]


def test_a_cut_edge_has_no_weight_in_any_head():
    made = model()
    assert (inside.attention_between(made, ITS, 7, 5) > 0).all()
    with intervene(made, {"blocks.*.mha.S": cut_edge(7, 5)}):
        assert (inside.attention_between(made, ITS, 7, 5) == 0).all()


def test_the_maps_of_a_text_are_those_between_its_words():
    made, one = model(), inside.Prompts(ITS.words[:1], ITS.ids[:1], ITS.right[:1])
    maps = inside.attention_maps(made, LANGUAGE, " ".join(ITS.words[0]))
    assert maps.shape == (2, 3, 8, 8)
    assert torch.allclose(maps[:, :, 7, 5], inside.attention_between(made, one, 7, 5))


def test_a_head_that_adds_nothing_is_not_missed():
    made = model()
    made.blocks[1].mha.W_O.weight[:, 8:16] = 0
    lost = inside.missed(made, ITS)
    assert lost.shape == (2, 3)
    assert lost[1, 1] == 0
    assert (lost[0] != 0).all()
    with intervene(made, {"blocks.0.mha.addends": zero_head(2)}):
        silent = inside.right_share(made, ITS)
    assert lost[0, 2].item() == pytest.approx(inside.right_share(made, ITS) - silent, abs=1e-6)


def test_with_one_block_a_transplant_of_all_heads_brings_the_other_answer():
    made = model(n_layers=1)
    moved = inside.transplant(made, ITS, inside.THING, 0, range(3))
    whole = inside.right_share(made, ITS)
    assert moved.donor == pytest.approx(whole, rel=1e-4)  # the last word sees nothing else of it
    assert moved.own != pytest.approx(whole, rel=1e-2)


def test_a_transplant_of_heads_that_add_nothing_changes_nothing():
    made = model()
    made.blocks[1].mha.W_O.weight[:] = 0
    moved = inside.transplant(made, ITS, inside.THING, 1, range(3))
    assert moved.own == pytest.approx(inside.right_share(made, ITS), rel=1e-4)


# Facts


def test_a_prefix_has_the_state_it_has_when_it_is_read_alone():
    made = model()
    inputs = inside.states(made, LANGUAGE, "blocks.1.norm_ffn")
    assert inputs.shape == (len(LANGUAGE.trie.node_p), 24)
    with record(made, "blocks.1.norm_ffn") as run:
        made(FACTS.ids)
    for i in (0, 17, 63):
        at = inside.place_of(LANGUAGE, FACTS.words[i])
        assert torch.allclose(inputs[at], run["blocks.1.norm_ffn"][i, -1], atol=1e-5)


def test_a_place_has_its_prefix():
    for words in (FACTS.words[3], ITS.words[7]):
        assert inside.prefix_at(LANGUAGE, inside.place_of(LANGUAGE, words)) == words


def test_the_chapter_s_two_states_by_hand():
    inputs = torch.tensor([[3.0, 4.0], [4.0, 3.0], [-7.0, -7.0]])  # mean 0
    assert inside.matches(inputs, 0).tolist() == pytest.approx([1, 0.96, -1.96])
    assert inside.next_match(inputs, 0) == pytest.approx(0.96)
    neuron = inside.fact_neuron(inputs, 0, change=torch.tensor([0.0, 2.0]))
    assert neuron.speaks(inputs).tolist() == pytest.approx([10, 0, 0], abs=1e-4)
    assert torch.allclose(neuron.value, torch.tensor([0.0, 1.5]))


def test_a_low_threshold_lets_the_neighbour_in():
    inputs = torch.tensor([[3.0, 4.0], [4.0, 3.0], [-7.0, -7.0]])
    neuron = inside.fact_neuron(inputs, 0, change=torch.ones(2), threshold=0.5)
    assert neuron.speaks(inputs)[:2].tolist() == pytest.approx([10, 10 * 0.46 / 0.5], rel=1e-3)


def test_a_neuron_adds_its_value_where_it_speaks():
    made = model()
    inputs = inside.states(made, LANGUAGE, "blocks.1.norm_ffn")
    fact = inside.place_of(LANGUAGE, FACTS.words[5])
    neuron = inside.fact_neuron(inputs, fact, change=torch.randn(24))
    before = {name: p.clone() for name, p in made.named_parameters()}
    wider = inside.with_neuron(made, neuron)
    assert wider.blocks[-1].ffn.W_1.out_features == 21
    with record(made, "blocks.1.ffn") as was, record(wider, "blocks.1.ffn") as now:
        made(FACTS.ids)
        wider(FACTS.ids)
    added = now["blocks.1.ffn"] - was["blocks.1.ffn"]
    assert torch.allclose(added[5, -1], 10 * neuron.value, atol=1e-2)
    added[5, -1] = 0
    assert added.abs().max() < 1e-6
    assert all(torch.equal(before[name], p) for name, p in made.named_parameters())


def test_a_gated_ffn_takes_no_such_neuron():
    made = model(activation="swiglu")
    nothing = inside.Neuron(torch.zeros(24), torch.tensor(0.0), torch.zeros(24))
    with pytest.raises(ValueError, match="can be added to a FeedForward, not to a SwiGLU"):
        inside.with_neuron(made, nothing)


def test_neurons_are_counted_through_both_blocks():
    made = model()
    lost = inside.lost_by_neuron(made, FACTS, 9)
    assert lost.shape == (40,)
    whole = inside.facts_without(made, FACTS, torch.tensor([], dtype=torch.long))[9]
    for number, (block, neuron) in {3: (0, 3), 27: (1, 7)}.items():
        edits = {f"blocks.{block}.ffn.hidden": set_to(0.0, at=(..., neuron))}
        silent = (inside.answers(made, FACTS, edits) * FACTS.right).sum(-1)[9]
        assert lost[number].item() == pytest.approx((whole - silent).item(), abs=1e-7)
        other = inside.facts_without(made, FACTS, torch.tensor([number]))[9]
        assert other.item() == pytest.approx(silent.item())


# What is recorded


def test_the_rows_hold_every_head_and_family():
    rows = study("work_of_heads")
    assert len(rows) == 10
    for row in rows:
        assert len(row["attention"]) == len(row["copy_donor"]) == 8
        assert [len(job) for job in row["jobs"]] == [8] * len(LANGUAGE.families)


def test_a_study_measures_whatever_it_is_given(monkeypatch, tmp_path):
    monkeypatch.setenv("TRANSFORMER_BLOCK_CACHE", str(tmp_path))
    row = inside.cut_edges(seed=5, steps=1)
    assert row.keys() == study("cut_edges")[0].keys() - {"seed", "steps"}
    assert 0 < row["cut"] < row["whole"] + 0.1 < 0.3  # an untrained model knows no product
