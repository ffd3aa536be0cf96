from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from transformer_block.activations import record, traced_shapes
from transformer_block.attention import causal_mask
from transformer_block.block import PreNormBlock
from transformer_block.config import ModelConfig
from transformer_block.counting import (
    Flops,
    activation_bytes,
    block_flops,
    cache_bytes,
    count_parameters,
    flops,
    generation_flops,
    parameter_table,
    shape_ledger,
    weight_bytes,
)
from transformer_block.generation import generate
from transformer_block.language_model import LanguageModel
from transformer_block.modern import ModernConfig, ModernModel, modern_block

B, n, V = 2, 5, 17
CONFIG = ModelConfig(vocab_size=V, n_ctx=7, d_model=12, n_heads=3, n_layers=2, d_ff=20)
VARIANTS = [
    {},
    {"norm_place": "post"},
    {"norm": "rms", "activation": "swiglu"},
    {"tie_weights": True, "bias": True},
    {"n_heads": 1},
]
GPT2_SMALL = ModelConfig(
    vocab_size=50257,
    n_ctx=1024,
    d_model=768,
    n_heads=12,
    n_layers=12,
    d_ff=3072,
    activation="gelu_tanh",
    tie_weights=True,
    bias=True,
)


def variant(change):
    return LanguageModel(replace(CONFIG, **change))


def counted(run):
    """Let torch count, by module; it does not count its fused attention, so take the plain one."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        run()
    return counter


# ---- parameters


def test_gpt_2_small_has_124_439_808_parameters():
    with torch.device("meta"):
        model = LanguageModel(GPT2_SMALL)
    assert count_parameters(model) == 124_439_808
    table = {row.part: row for row in parameter_table(model)}
    assert table["E"].parameters == 50257 * 768
    assert (table["W_LM"].parameters, table["W_LM"].shared_with) == (0, "E")
    assert weight_bytes(model, torch.float16) == 2 * 124_439_808


@pytest.mark.parametrize("change", VARIANTS)
def test_the_table_adds_up(change):
    model = variant(change)
    table = parameter_table(model)
    assert sum(row.parameters for row in table) == count_parameters(model)
    assert len({id(p): p.numel() for p in model.parameters()}) == len(list(model.parameters()))
    parts = [row.part for row in table]
    assert parts[:4] == ["E", "P", "blocks.0.norm_mha", "blocks.0.mha"]
    assert parts[-1] == "W_LM"
    assert {row.part: row.parameters for row in table}["blocks.1.mha"] == count_parameters(
        model.blocks[1].mha
    )
    assert all((row.shared_with is None) or row.part == "W_LM" for row in table)


def test_a_shared_tensor_counts_once(caught):
    model = variant({"tie_weights": True})

    def proof(count):
        assert count(model) == count(variant({})) - V * 12

    proof(count_parameters)
    caught(proof, lambda m: sum(p.numel() for p in m.state_dict().values()))


def test_a_row_of_the_table_stays_as_it_was_counted():
    row = parameter_table(PreNormBlock(12, 3, 20))[0]
    with pytest.raises(AttributeError, match="cannot assign"):
        row.parameters = 0


def test_the_table_of_a_part_alone():
    rows = parameter_table(PreNormBlock(12, 3, 20))
    assert [(row.part, row.parameters) for row in rows] == [
        ("norm_mha", 24),
        ("mha", 4 * 12 * 12),
        ("norm_ffn", 24),
        ("ffn", 12 * 20 + 20 + 20 * 12 + 12),
    ]


# ---- FLOPs


@pytest.mark.parametrize("change", VARIANTS)
@pytest.mark.parametrize("length", [1, 4, 7])
def test_flops_are_what_torch_counts_in_all_and_by_part(change, length):
    config = replace(CONFIG, **change)
    model = LanguageModel(config)
    counter = counted(lambda: model(torch.zeros(B, length, dtype=torch.long)))
    want = flops(config, length, batch=B)
    assert counter.get_total_flops() == want.total
    by_part = {
        part: sum(ops.values()) for part, ops in counter.get_flop_counts().items() if "." in part
    }
    blocks = [f"LanguageModel.blocks.{i}." for i in range(2)]
    qkvo = sum(by_part[f"{b}mha.W_{letter}"] for b in blocks for letter in "QKVO")
    assert want == Flops(
        qkvo=qkvo,
        scores=sum(by_part[f"{b}mha"] for b in blocks) - qkvo,
        ffn=sum(by_part[f"{b}ffn"] for b in blocks),
        head=by_part["LanguageModel.W_LM"],
    )


def test_flops_beside_a_cache():
    model, ids = variant({}), torch.zeros(B, 7, dtype=torch.long)
    caches = model.new_caches()
    model(ids[:, :4], caches)
    counter = counted(lambda: model(ids[:, 4:6], caches))
    assert counter.get_total_flops() == flops(CONFIG, 2, n_past=4, batch=B).total


@pytest.mark.parametrize("n_prompt", [1, 3, 9])
@pytest.mark.parametrize("use_cache", [True, False])
def test_what_generation_costs_with_and_without_the_cache(n_prompt, use_cache, caught):
    model, ids = variant({}), torch.zeros(B, n_prompt, dtype=torch.long)
    counter = counted(lambda: generate(model, ids, 8, use_cache=use_cache))

    def proof(use):
        want = generation_flops(CONFIG, n_prompt, 8, use_cache=use, batch=B).total
        assert counter.get_total_flops() == want

    proof(use_cache)
    if n_prompt < CONFIG.n_ctx:
        caught(proof, not use_cache)
    assert generation_flops(CONFIG, n_prompt, 0).total == 0


def test_the_formulas_at_the_running_example():
    cost, d, d_ff = block_flops(n=100, d_model=512, n_heads=8, d_ff=2048), 512, 2048
    assert cost.qkvo == 8 * 100 * d**2
    assert cost.scores == 4 * 100**2 * d
    assert cost.ffn == 4 * 100 * d * d_ff
    # The score part overtakes the FFN where n = d_ff.
    for n_long, longer in ((2047, False), (2049, True)):
        cost = block_flops(n=n_long, d_model=512, n_heads=8, d_ff=2048)
        assert (cost.scores > cost.ffn) == longer


# ---- bytes


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_bytes_are_those_of_the_tensors(dtype):
    config = replace(CONFIG, bias=True)
    model = LanguageModel(config).to(dtype)
    assert weight_bytes(model) == sum(p.nbytes for p in model.parameters())
    assert weight_bytes(model, torch.float32) == 4 * count_parameters(model)
    caches = model.new_caches()
    model(torch.zeros(B, n, dtype=torch.long), caches)
    kept = sum(cache.K.nbytes + cache.V.nbytes for cache in caches)
    assert cache_bytes(config, n, batch=B, dtype=dtype) == kept


@pytest.mark.parametrize("change", VARIANTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_activation_bytes_are_those_of_a_recorded_run(change, dtype):
    config = replace(CONFIG, **change)
    model = LanguageModel(config).to(dtype)
    with record(model) as run:
        model(torch.zeros(B, n, dtype=torch.long))
    made = {name: t for name, t in run.items() if name.rpartition(".")[2] not in ("S", "addends")}
    if config.norm_place == "post":
        # The norms' outputs are H and X' themselves; instead there are the two sums before them.
        del made["norm_final"]
    size = sum(tensor.nbytes for tensor in made.values())
    assert activation_bytes(config, n, batch=B, dtype=dtype) == size


# ---- the ledger


def traced(block, length):
    shapes = traced_shapes(block, torch.randn(B, length, block.mha.d_model), causal_mask(length))
    shapes = {code: shape[1:] for code, shape in shapes.items()}
    return shapes | {"mha.W_O": tuple(block.mha.W_O.weight.T.shape)}


SETTINGS = [
    {},
    {"activation": "swiglu"},
    {"norm": "rms"},
    {"bias": True},
    {"bias": True, "norm": "rms", "activation": "swiglu"},
]


@pytest.mark.parametrize("how", SETTINGS)
@pytest.mark.parametrize("sizes", [(5, 12, 3, 20), (1, 8, 1, 3), (7, 12, 12, 5)])
def test_the_ledger_is_what_a_traced_run_shows(how, sizes):
    ledger = shape_ledger(*sizes, **how)
    block = PreNormBlock(*sizes[1:], **how)
    shapes = traced(block, sizes[0])
    assert {row.code: row.full_shape for row in ledger} == {
        code: shape for code, shape in shapes.items() if code not in ("mha.S", "mha.addends")
    }
    assert sum(row.parameters for row in ledger) == count_parameters(block)
    X = torch.randn(1, sizes[0], sizes[1])
    total = counted(lambda: block(X, causal_mask(sizes[0]))).get_total_flops()
    assert sum(row.flops for row in ledger) == total
    for row in ledger:
        numbers = torch.Size(row.full_shape).numel()
        assert row.bytes == 4 * numbers


def test_a_swapped_axis_in_the_ledger_is_caught(caught):
    shapes = traced(PreNormBlock(12, 3, 20), 5)

    def proof(ledger):
        assert all(shapes[row.code] == row.full_shape for row in ledger)

    proof(shape_ledger(5, 12, 3, 20))
    caught(
        proof, shape_ledger(12, 5, 5, 20), shape_ledger(5, 12, 4, 20), shape_ledger(5, 12, 3, 12)
    )


def test_the_running_example_s_table():
    table = {row.code: row for row in shape_ledger(n=100, d_model=512, n_heads=8, d_ff=2048)}
    assert [row.shape for row in table.values()] == [
        *[(100, 512)] * 2,
        *[(100, 64)] * 3,
        (100, 100),
        (100, 64),
        (100, 512),
        (512, 512),
        *[(100, 512)] * 3,
        *[(100, 2048)] * 2,
        *[(100, 512)] * 2,
    ]
    assert table["mha.A"].full_shape == (8, 100, 100)
    assert table["mha.A"].heads == 8
    assert table["X"].heads is None
    assert table["ffn.pre"].bytes == 100 * 2048 * 4


def test_heads_that_are_wider_than_their_share():
    table = {row.code: row for row in shape_ledger(5, 12, 3, 20, d_head=7)}
    assert table["mha.W_O"].shape == (21, 12)
    assert table["mha.Q"].full_shape == (3, 5, 7)
    assert sum(row.flops for row in table.values()) == block_flops(5, 12, 3, 20, d_head=7).total


@settings(deadline=None, max_examples=40)  # a busy machine is no failure
@given(st.integers(1, 12), st.integers(1, 6), st.integers(1, 5), st.integers(1, 30), st.booleans())
def test_the_number_of_heads_changes_no_sum(length, h, d_head, d_ff, bias):
    one = shape_ledger(length, h * d_head, 1, d_ff, bias=bias)
    many = shape_ledger(length, h * d_head, h, d_ff, bias=bias)
    for sums in (lambda row: row.parameters, lambda row: row.flops):
        assert sum(map(sums, one)) == sum(map(sums, many))


# ---- what published models changed

MODERN = ModernConfig(
    vocab_size=V,
    n_ctx=7,
    d_model=12,
    n_heads=6,
    n_layers=2,
    d_ff=20,
    norm="rms",
    activation="swiglu",
    positions="rotary",
)
MODERN_VARIANTS = [
    {},
    {"n_kv_heads": 2},
    {"n_kv_heads": 1, "d_head": 10, "tie_weights": True},
    {"n_kv_heads": 3, "d_head": 4, "bias": True, "positions": "learned", "norm_place": "post"},
]


@pytest.mark.parametrize("change", MODERN_VARIANTS)
@pytest.mark.parametrize("length", [1, 4])
def test_flops_of_a_modern_model_are_what_torch_counts(change, length, caught):
    config = replace(MODERN, **change)
    model, ids = ModernModel(config), torch.zeros(B, 7, dtype=torch.long)
    counter = counted(lambda: model(ids[:, :length]))
    by_part = counter.get_flop_counts()

    def proof(config):
        want = flops(config, length, batch=B)
        assert counter.get_total_flops() == want.total
        names = [f"ModernModel.blocks.{i}.mha.W_{letter}" for i in range(2) for letter in "QKVO"]
        assert want.qkvo == sum(sum(by_part[name].values()) for name in names)

    proof(config)
    caught(proof, replace(config, n_kv_heads=2 if config.n_kv_heads != 2 else 6))
    caught(proof, replace(config, d_head=config.d_head + 2))
    caches = model.new_caches()
    model(ids[:, :4], caches)
    counter = counted(lambda: model(ids[:, 4:6], caches))
    assert counter.get_total_flops() == flops(config, 2, n_past=4, batch=B).total


@pytest.mark.parametrize("use_cache", [True, False])
def test_what_generation_by_a_modern_model_costs(use_cache):
    config = replace(MODERN, n_kv_heads=2, d_head=4)
    ids = torch.zeros(B, 3, dtype=torch.long)
    counter = counted(lambda: generate(ModernModel(config), ids, 8, use_cache=use_cache))
    want = generation_flops(config, 3, 8, use_cache=use_cache, batch=B)
    assert counter.get_total_flops() == want.total


@pytest.mark.parametrize("change", MODERN_VARIANTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_bytes_of_a_modern_model_are_those_of_the_tensors(change, dtype, caught):
    config = replace(MODERN, **change)
    model = ModernModel(config).to(dtype)
    caches = model.new_caches()
    with record(model) as run:
        model(torch.zeros(B, n, dtype=torch.long), caches)
    kept = sum(cache.K.nbytes + cache.V.nbytes for cache in caches)
    assert cache_bytes(config, n, batch=B, dtype=dtype) == kept
    made = {name: t for name, t in run.items() if name.rpartition(".")[2] not in ("S", "addends")}
    if config.norm_place == "post":
        del made["norm_final"]
    size = sum(
        t.nbytes * config.n_kv_heads // config.n_heads if name[-2:] in (".K", ".V") else t.nbytes
        for name, t in made.items()
    )

    def proof(config):
        assert activation_bytes(config, n, batch=B, dtype=dtype) == size

    proof(config)
    caught(proof, replace(config, d_head=config.d_head + 2))


@pytest.mark.parametrize("change", MODERN_VARIANTS)
def test_the_parameter_table_of_a_modern_model_adds_up(change):
    config = replace(MODERN, **change)
    model = ModernModel(config)
    table = {row.part: row.parameters for row in parameter_table(model)}
    assert sum(table.values()) == count_parameters(model)
    assert ("P" in table) == (config.positions == "learned")


@pytest.mark.parametrize("change", MODERN_VARIANTS)
def test_the_ledger_of_a_modern_block_adds_up(change):
    config = replace(MODERN, **change)
    ledger = {
        row.code: row
        for row in shape_ledger(
            n,
            12,
            6,
            20,
            d_head=config.d_head,
            n_kv_heads=config.n_kv_heads,
            norm="rms",
            activation="swiglu",
            bias=config.bias,
        )
    }
    block = modern_block(config)
    assert sum(row.parameters for row in ledger.values()) == count_parameters(block)
    for letter in "QKVO":
        assert ledger["mha.W_O" if letter == "O" else f"mha.{letter}"].parameters == (
            count_parameters(getattr(block.mha, f"W_{letter}"))
        )
    X = torch.randn(1, n, 12)
    total = counted(lambda: block(X, causal_mask(n))).get_total_flops()
    assert sum(row.flops for row in ledger.values()) == total
    shapes = traced(block, n)
    for code, row in ledger.items():
        if code in ("mha.K", "mha.V"):  # the run shows them as each head reads them
            assert row.full_shape == (config.n_kv_heads, n, config.d_head)
            assert shapes[code] == (6, n, config.d_head)
        else:
            assert row.full_shape == shapes[code]


def test_the_llama_formulas_by_hand():
    cost = block_flops(100, 4096, 32, 14336, n_kv_heads=8, activation="swiglu")
    assert cost.qkvo == 2 * 100 * 4096 * (2 * 4096 + 2 * 1024)
    assert cost.scores == 4 * 100 * 100 * 4096
    assert cost.ffn == 6 * 100 * 4096 * 14336
    llama_8b = ModernConfig(
        vocab_size=128_256,
        n_ctx=8192,
        d_model=4096,
        n_heads=32,
        n_kv_heads=8,
        n_layers=32,
        d_ff=14336,
        positions="rotary",
    )
    assert cache_bytes(llama_8b, 8192, dtype=torch.bfloat16) == 2**30


# ---- bad input


@pytest.mark.parametrize(
    ("call", "rule"),
    [
        (lambda: block_flops(0, 12, 3, 20), "n must be a whole number of at least 1"),
        (lambda: block_flops(5, 10, 3, 20), "10 / 3 leaves 1; try 2 or 5"),
        (lambda: block_flops(5, 12, 3, 20, d_head=0), "d_head must be"),
        (lambda: block_flops(5, 12, 3, 20, n_past=-1), "n_past must be"),
        (lambda: block_flops(5, 12, 6, 20, n_kv_heads=4), "so that the groups .* 6 / 4 leaves 2"),
        (lambda: block_flops(5, 12, 6, 20, n_kv_heads=0), "n_kv_heads must be a whole number"),
        (lambda: shape_ledger(5, 12, 6, 20, n_kv_heads=4), "6 / 4 leaves 2"),
        (lambda: shape_ledger(5, 12, 5, 20), "n_heads must divide d_model"),
        (lambda: shape_ledger(5, 12, 3, 20, norm="batch"), "norm must be"),
        (lambda: shape_ledger(5, 12, 3, 20, activation="tanh"), "activation must be"),
        (lambda: flops(CONFIG, 8), "at most n_ctx = 7 tokens, not 8"),
        (lambda: flops(CONFIG, 3, n_past=5), "not 8"),
        (lambda: flops(CONFIG, 3, batch=0), "batch must be"),
        (lambda: cache_bytes(CONFIG, 0), "n must be"),
        (lambda: activation_bytes(CONFIG, 1, batch=-1), "batch must be"),
        (lambda: generation_flops(CONFIG, 0, 3), "n_prompt must be"),
        (lambda: generation_flops(CONFIG, 3, -1), "n_new must be a whole number of at least 0"),
    ],
)
def test_impossible_sizes_are_refused(call, rule):
    with pytest.raises(ValueError, match=rule):
        call()


def test_frozen_and_buffers():
    part = nn.BatchNorm1d(3)  # has buffers, which are not trained
    part.weight.requires_grad_(False)
    assert count_parameters(part) == 6
