import pickle
from copy import deepcopy
from dataclasses import asdict, replace

import pytest
import torch

from transformer_block.ablation import PARTS, freeze_all_but, without
from transformer_block.activations import intervene, record, scale
from transformer_block.block import PostNormBlock, PreNormBlock
from transformer_block.config import ModelConfig
from transformer_block.generation import generate
from transformer_block.language_model import LanguageModel
from transformer_block.modern import ModernConfig, ModernModel, modern_block
from transformer_block.norm import LayerNorm, RMSNorm
from transformer_block.rotary import Stretch
from transformer_block.training import next_token_loss

B, n = 2, 5
SIZES = {"vocab_size": 17, "n_ctx": 9, "d_model": 12, "n_heads": 6, "n_layers": 2, "d_ff": 20}
STRETCH = Stretch(factor=4.0, low=1.0, high=4.0, n_trained=5)
VARIANTS = [
    {},
    {"norm": "rms", "activation": "swiglu", "positions": "rotary", "n_kv_heads": 2, "d_head": 4},
    {"positions": "rotary", "theta": 50.0, "stretch": STRETCH, "tie_weights": True},
    {"norm_place": "post", "n_kv_heads": 1, "bias": True, "eps": 1e-3},
    {"norm_place": "post", "positions": "rotary", "d_head": 10},
]


def model(change, seed=3):
    torch.manual_seed(seed)
    return ModernModel(ModernConfig(**SIZES | change)).eval()


def ids(length=n):
    return torch.randint(0, 17, (B, length), generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"norm_place": "post"},
        {"norm": "rms", "activation": "swiglu"},
        {"tie_weights": True, "bias": True},
    ],
)
def test_with_the_old_choices_it_is_the_old_model(change):
    modern, plain = model(change), LanguageModel(ModelConfig(**SIZES | change))
    plain.load_state_dict(modern.state_dict())
    assert torch.equal(modern(ids()), plain(ids()))


def test_a_config_fills_in_what_follows():
    config = ModernConfig(**SIZES)
    assert (config.d_head, config.n_kv_heads, config.positions) == (2, 6, "learned")
    assert replace(config, d_head=10, n_kv_heads=3).d_head == 10
    assert ModernConfig(**asdict(ModelConfig(**SIZES))) == config


@pytest.mark.parametrize("change", VARIANTS)
def test_the_parts_are_those_that_the_config_names(change):
    config = ModernConfig(**SIZES | change)
    built = model(change)
    norms = [part for part in built.modules() if isinstance(part, LayerNorm | RMSNorm)]
    assert len(norms) == 2 * 2 + (config.norm_place == "pre")
    assert {norm.eps for norm in norms} == {config.eps}
    assert {type(norm) for norm in norms} == {RMSNorm if config.norm == "rms" else LayerNorm}
    kind = PostNormBlock if config.norm_place == "post" else PreNormBlock
    for block in built.blocks:
        assert type(block) is kind
        assert block.mha.W_Q.weight.shape == (6 * config.d_head, 12)
        assert block.mha.W_K.weight.shape == (config.n_kv_heads * config.d_head, 12)
        assert (block.mha.W_O.bias is not None) == config.bias
    assert hasattr(built, "P") == (config.positions == "learned")
    assert (built.W_LM.weight is built.E.weight) == config.tie_weights
    turns = {id(block.mha.rotary) for block in built.blocks}
    assert len(turns) == 1  # one set of tables for all blocks


@pytest.mark.parametrize("change", VARIANTS)
@pytest.mark.parametrize("steps", [[1] * n, [3, 2]])
def test_a_cache_changes_nothing(change, steps):
    built = model(change).double()
    caches = built.new_caches()
    parts = [built(part, caches) for part in ids().split(steps, dim=1)]
    torch.testing.assert_close(torch.cat(parts, 1), built(ids()), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("change", VARIANTS)
def test_the_future_changes_no_earlier_logit(change):
    built, changed = model(change), ids()
    changed[:, 3:] = 7
    before, after = built(ids())[:, :3], built(changed)[:, :3]
    torch.testing.assert_close(before, after)


@pytest.mark.parametrize("change", VARIANTS)
def test_generation_with_the_cache_is_that_without(change):
    built = model(change)
    with_cache, without_cache = (
        generate(built, ids(3), 9, temperature=0, use_cache=use) for use in (True, False)
    )
    assert torch.equal(with_cache, without_cache)  # past n_ctx as well
    assert with_cache.shape == (B, 12)


def test_positions_matter_and_only_their_differences():
    built = model({"positions": "rotary"}).double()
    same = torch.full((1, 4), 7)
    # of equal tokens each reads equal values, wherever they stand
    logits = built(same)
    torch.testing.assert_close(logits, logits[:, :1].expand_as(logits))
    order = torch.tensor([[3, 5, 7]])
    assert not torch.allclose(built(order)[:, -1], built(order[:, [1, 0, 2]])[:, -1])
    learned = model({}).double()(same)
    assert not torch.allclose(learned, learned[:, :1].expand_as(learned))


@pytest.mark.parametrize("change", VARIANTS)
def test_every_activation_has_its_name_and_can_be_changed(change):
    built = model(change)
    plain = built(ids())
    with record(built) as run:
        logits = built(ids())
    torch.testing.assert_close(logits, plain)
    assert run["X0"].shape == (B, n, 12)
    assert run["blocks.1.mha.A"].shape == (B, 6, n, n)
    assert torch.equal(run["logits"], logits)
    if change.get("positions") == "rotary":
        assert torch.equal(run["X0"], built.E(ids()))
    with intervene(built, {"blocks.0.mha.Z": scale(0.0)}):
        changed = built(ids())
    assert not torch.allclose(changed, plain)
    assert torch.equal(built(ids()), plain)


@pytest.mark.parametrize("part", PARTS)
def test_parts_can_be_taken_out(part):
    built = model(VARIANTS[1])
    before = built(ids())
    assert not torch.allclose(without(built, part)(ids()), before)
    assert torch.equal(built(ids()), before)


def test_parts_can_learn_alone():
    built = freeze_all_but(model(VARIANTS[1]), "attention")
    learning = {name for name, p in built.named_parameters() if p.requires_grad}
    assert len(learning) == 2 * 4
    assert all(".mha." in name for name in learning)


@pytest.mark.parametrize("change", VARIANTS)
def test_it_learns(change):
    built, batch = model(change).train(), ids(9)
    optimiser = torch.optim.AdamW(built.parameters(), lr=0.01)
    losses = []
    for _ in range(40):
        loss = next_token_loss(built(batch), batch)
        optimiser.zero_grad()
        loss.backward()
        assert all(p.grad is not None for p in built.parameters())
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 3


@pytest.mark.parametrize("copy", [deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_computes_the_same(copy):
    built = model(VARIANTS[1])
    logits = built(ids())
    assert torch.equal(copy(built)(ids()), logits)


def test_without_numbers_it_is_built_at_once_and_nothing_is_drawn():
    state = torch.get_rng_state()
    with torch.device("meta"):
        built = ModernModel(ModernConfig(**SIZES | {"n_ctx": 10**9, "positions": "rotary"}))
    assert all(parameter.is_meta for parameter in built.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_block_alone_has_a_rotary_of_its_own():
    block = modern_block(ModernConfig(**SIZES | VARIANTS[2]))
    assert block.mha.rotary.theta == 50
    assert block.mha.rotary.stretch == STRETCH
    assert modern_block(ModernConfig(**SIZES)).mha.rotary is None


@pytest.mark.usefixtures("as_a_reader")
@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"n_layers": 0}, "n_layers must be a whole number of at least 1"),
        ({"n_heads": 5}, "n_heads must divide d_model; 12 / 5 leaves 2"),
        ({"n_kv_heads": 4}, "n_kv_heads must divide n_heads, .* 6 / 4 leaves 2"),
        ({"n_kv_heads": -1}, "n_kv_heads must be a whole number"),
        ({"d_head": -1}, "d_head must be a whole number"),
        ({"d_head": 3, "positions": "rotary"}, "d_head must be even, not 3"),
        ({"positions": "sinusoidal"}, "learned or rotary, not 'sinusoidal'"),
        ({"positions": "rotary", "theta": 0.5}, "theta must be a finite number above 1"),
        ({"stretch": STRETCH}, "learned ones cannot be stretched"),
        ({"eps": 0.0}, "eps must be a small number above 0, not 0.0"),
        ({"eps": 1.0}, "eps must be"),
        ({"norm": "batch"}, "norm must be one of"),
        ({"activation": "tanh"}, "activation must be one of"),
        ({"norm_place": "both"}, "norm_place must be pre or post"),
    ],
)
def test_bad_configs_are_told_clearly(change, rule):
    with pytest.raises(ValueError, match=rule):
        ModernConfig(**SIZES | change)


@pytest.mark.usefixtures("as_a_reader")
@pytest.mark.parametrize("change", [{}, {"positions": "rotary"}])
def test_bad_ids_are_told_clearly(change):
    built = model(change)
    with pytest.raises(ValueError, match="at most n_ctx = 9 tokens, not 10"):
        built(ids(10))
    caches = built.new_caches()
    built(ids(9), caches)
    with pytest.raises(ValueError, match="at most n_ctx = 9 tokens, not 10"):
        built(ids(1), caches)
    with pytest.raises(ValueError, match="must lie in 0 … 16"):
        built(torch.full((B, n), 17))
    with pytest.raises(ValueError, match="hold no token"):
        built(ids()[:, :0])
