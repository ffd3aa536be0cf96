import math

import pytest
import torch
from torch import nn

from transformer_block import LanguageModel, PostNormBlock, PreNormBlock, causal_mask
from transformer_block.experiments.deep_stacks import deep_model
from transformer_block.experiments.pre_norm_block import (
    MIXERS,
    DenseBox,
    ElsewhereLanguage,
    apart,
    as_torch_layer,
    fillers_read,
    first_hundred,
    gradients_by_torch_name,
    names_in_torch,
    train_elsewhere,
)
from transformer_block.language import Family, ToyLanguage, toy_language
from transformer_block.training import toy_config

B, n, n_ctx, d_model, width, h, d_ff = 2, 5, 7, 12, 3, 3, 20
SMALL = ToyLanguage(
    (
        Family("fruit", 0.4, {"an apple is [red] .": 0.75, "an apple is [green] .": 0.25}),
        Family("sky", 0.6, {"a sky is [blue] .": 1.0}),
    )
)


def by_hand(box, X):
    """Let each place read each earlier one through a matrix of its own."""
    Y, out = box.norm(X), X.clone()
    for i in range(X.shape[1]):
        read = sum(Y[:, j] @ box.W_1[i, j] for j in range(i + 1)) + box.b_1[i]
        out[:, i] += nn.functional.gelu(read) @ box.W_2[i] + box.b_2[i]
    return out


def test_the_box_is_a_matrix_for_each_pair_of_places(double):
    box, X = DenseBox(n_ctx, d_model, width), torch.randn(B, n, d_model)
    nn.init.normal_(box.b_1)
    nn.init.normal_(box.b_2)
    torch.testing.assert_close(box(X), by_hand(box, X))


def test_the_box_is_causal_to_the_bit():
    box, X = DenseBox(n_ctx, d_model, width), torch.randn(B, n, d_model)
    changed = X.clone()
    changed[:, 3:] = -4
    assert torch.equal(box(X)[:, :3], box(changed)[:, :3])
    assert not torch.equal(box(X)[:, 3:], box(changed)[:, 3:])


def test_weights_in_use_are_those_with_a_gradient():
    box = DenseBox(n_ctx, d_model, width)
    box(torch.randn(B, n_ctx, d_model)).square().sum().backward()
    used = (box.W_1, box.b_1, box.W_2, box.b_2)
    assert box.n_weights == sum(int(p.grad.count_nonzero()) for p in used)


def test_the_box_has_about_the_weights_of_a_block():
    source = ElsewhereLanguage(toy_language())
    block = LanguageModel(toy_config(n_layers=1)).blocks[0]
    box = DenseBox(source.n_ctx, 64, MIXERS["dense box"][1])
    assert box.n_weights == pytest.approx(sum(p.numel() for p in block.parameters()), rel=0.01)


def test_a_text_over_n_ctx_is_refused():
    with pytest.raises(ValueError, match="weights for 7 places, not for 8"):
        DenseBox(n_ctx, d_model, width)(torch.zeros(B, 8, d_model))
    with pytest.raises(ValueError, match="width"):
        DenseBox(n_ctx, d_model, 0)


def test_half_of_the_pairs_are_said_and_only_they_come():
    source = ElsewhereLanguage(SMALL, n_places=4)
    assert source.said.tolist() == [[True, False, True, False], [False, True, False, True]]
    assert source.n_ctx == 9
    seen = set()
    for ids, counts in source.batches(5, 64, torch.Generator().manual_seed(1)):
        assert len(ids) == 64
        for row, counted in zip(ids, counts, strict=True):
            fillers = int((row == SMALL.bos_id).sum()) - 1
            assert row[: fillers + 1].eq(SMALL.bos_id).all()
            words = SMALL.decode(row)
            assert int(counted.sum()) == len(words) == 5
            seen.add((words[1], fillers))
    assert seen == {("apple", 0), ("apple", 2), ("sky", 1), ("sky", 3)}


class Knows(nn.Module):
    """Predict the true distribution behind every prefix, or a flat one behind some fillers."""

    def __init__(self, flat_at=()):
        super().__init__()
        self.flat_at = flat_at

    def forward(self, ids):
        V = len(SMALL.vocabulary)
        logits = torch.zeros(*ids.shape, V)
        for b, row in enumerate(ids):
            fillers = int((row == SMALL.bos_id).sum()) - 1
            words = SMALL.decode(row)
            for i in range(len(words) * (fillers not in self.flat_at)):
                logits[b, fillers + i] = -1e9
                for word, p in SMALL.next_token_distribution(words[:i]).items():
                    logits[b, fillers + i, SMALL.id_of[word]] = torch.tensor(p).log()
        return logits


def test_the_excess_is_zero_where_the_language_is_known_and_exact_where_it_is_not():
    source = ElsewhereLanguage(SMALL, n_places=3)
    excess = source.excess(Knows(flat_at=(1,)))
    assert excess[:, [0, 2]].abs().max() < 1e-6
    flat = torch.tensor(float(len(SMALL.vocabulary))).log()
    assert excess[1, 1].item() == pytest.approx(flat.item(), abs=1e-6)  # all after "a" is certain
    H = torch.special.entr(torch.tensor([0.75, 0.25])).sum()
    assert excess[0, 1].item() == pytest.approx((flat - H / 4).item(), abs=1e-6)


def test_one_place_is_not_enough():
    with pytest.raises(ValueError, match="n_places must be at least 2, not 1"):
        ElsewhereLanguage(SMALL, n_places=1)


@pytest.mark.parametrize("mixer", ["block", "block with positions", "dense box"])
def test_each_mixer_learns_and_is_what_it_is_called(mixer):
    state = torch.get_rng_state()
    model = train_elsewhere(mixer, seed=1, steps=3)
    assert torch.equal(state, torch.get_rng_state())
    assert isinstance(model.blocks[0], DenseBox) == (mixer == "dense box")
    assert bool(model.P.weight.any()) == (mixer != "block")


def test_an_unknown_mixer_is_refused():
    with pytest.raises(ValueError, match=r"the mixers are block, .*; not 'box'"):
        train_elsewhere("box", seed=1)


def drawn(Block, **settings):
    block = Block(d_model, h, d_ff, **settings)
    for norm in (block.norm_mha, block.norm_ffn):
        nn.init.normal_(norm.gamma, mean=1)
        nn.init.normal_(norm.beta)
    return block


@pytest.mark.parametrize("Block", [PreNormBlock, PostNormBlock])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_the_layer_is_the_block(Block, bias, activation, double):
    block, mask = drawn(Block, bias=bias, activation=activation), causal_mask(n)
    layer = as_torch_layer(block)
    X, probe = torch.randn(B, n, d_model), torch.randn(B, n, d_model)
    ours, theirs = block(X, mask), layer(X, src_mask=~mask)
    torch.testing.assert_close(ours, theirs)
    (ours * probe).sum().backward()
    (theirs * probe).sum().backward()
    mine = gradients_by_torch_name(block)
    for name, weight in layer.named_parameters():
        if bias or not name.startswith("self_attn") or name.endswith("weight"):
            torch.testing.assert_close(mine.pop(name), weight.grad)
    assert not mine


def test_the_layer_has_copies():
    block = drawn(PreNormBlock)
    layer = as_torch_layer(block)
    nn.init.zeros_(layer.linear1.weight)
    assert block.ffn.W_1.weight.any()


def test_no_weight_is_left_out():
    block = drawn(PreNormBlock, bias=True)
    ours = [weight for weights in names_in_torch(block).values() for weight in weights]
    assert {id(p) for p in ours} == {id(p) for p in block.parameters()}


@pytest.mark.parametrize("settings", [{"norm": "rms"}, {"activation": "swiglu"}])
def test_what_torch_has_not_is_refused(settings):
    with pytest.raises(ValueError, match="LayerNorm and a two-layer FFN only"):
        as_torch_layer(PreNormBlock(d_model, h, d_ff, **settings))


def test_the_rate_rises_during_warm_up_and_then_stays(monkeypatch):
    rates = []
    step = torch.optim.AdamW.step

    def spy(optimiser, *args):
        rates.append(optimiser.param_groups[0]["lr"])
        return step(optimiser, *args)

    monkeypatch.setattr(torch.optim.AdamW, "step", spy)
    model = deep_model("pre-norm", 2, seed=1)
    losses, gradients = first_hundred(model, seed=1, lr=0.01, warm_up=0.5, steps=4)
    assert rates == pytest.approx([0.005, 0.01, 0.01, 0.01])
    assert len(losses) == 4
    lengths = [
        math.sqrt(sum(float(p.grad.square().sum()) for p in block.parameters()))
        for block in model.blocks
    ]
    assert gradients == pytest.approx(lengths)


def test_nothing_is_clipped(monkeypatch):
    limits = []
    monkeypatch.setattr(
        torch.nn.utils,
        "clip_grad_norm_",
        lambda weights, limit: limits.append(limit) or torch.tensor(1.0),
    )
    first_hundred(deep_model("pre-norm", 1, seed=1), seed=1, lr=0.01, warm_up=0.0, steps=1)
    assert limits == [math.inf]


def test_tokens_that_are_one_vector_are_not_apart():
    model = deep_model("pre-norm", 1, seed=2)
    before = apart(model, seed=2)
    assert len(before) == 2
    assert all(0.3 < share < 1 for share in before)
    nn.init.zeros_(model.E.weight)  # only the position is left, the same for all 64
    assert apart(model, seed=2) == pytest.approx([0, 0], abs=1e-6)


def test_tokens_without_a_common_part_are_apart():
    model = deep_model("pre-norm", 1, seed=2)
    with torch.no_grad():
        model.P.weight.zero_()
        model.E.weight.normal_()
        together = apart(model, seed=2)[0]
        model.P.weight.fill_(3.0)
    assert apart(model, seed=2)[0] < together / 2


def test_the_reader_finds_the_fillers_where_they_stand_and_only_there():
    source = ElsewhereLanguage(SMALL, n_places=4)
    config = toy_config(
        n_layers=1, n_ctx=source.n_ctx, d_model=12, n_heads=3, vocab_size=len(SMALL.vocabulary)
    )
    model = LanguageModel(config)
    with torch.no_grad():
        model.P.weight.zero_()
        block = model.blocks[0]
        for silent in (block.mha.W_O.weight, block.ffn.W_2.weight, block.ffn.W_2.bias):
            silent.zero_()
        assert fillers_read(model, source, seed=1) == [0, 0]  # no positions, and a silent block
        model.P.weight[:, 0] = torch.arange(source.n_ctx)
        assert min(fillers_read(model, source, seed=1)) > 0.9
