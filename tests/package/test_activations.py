import io
import math
import pickle
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from transformer_block.activations import (
    cut_edge,
    intervene,
    record,
    scale,
    set_to,
    traced_shapes,
    zero_head,
)
from transformer_block.activations.taps import _BOARDS, _Board
from transformer_block.attention import attention_scores, attention_weights, causal_mask
from transformer_block.block import PostNormBlock, PreNormBlock
from transformer_block.config import ModelConfig
from transformer_block.feed_forward import FeedForward, SwiGLU
from transformer_block.generation import generate
from transformer_block.language_model import LanguageModel
from transformer_block.multi_head import MultiHeadAttention
from transformer_block.norm import LayerNorm

B, n, d_model, h, d_head, d_ff, V = 2, 5, 12, 3, 4, 20, 17
CONFIG = ModelConfig(vocab_size=V, n_ctx=7, d_model=d_model, n_heads=h, n_layers=2, d_ff=d_ff)
VARIANTS = [
    {},
    {"norm_place": "post"},
    {"norm": "rms", "activation": "swiglu", "tie_weights": True, "bias": True},
]
EDITABLE = ["mha.Q", "mha.K", "mha.V", "mha.S", "mha.A", "mha.Z", "mha.concat", "mha.addends"]
EDITABLE += ["mha", "norm_mha", "H", "norm_ffn", "ffn.pre", "ffn.hidden", "ffn"]


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    yield
    assert not _BOARDS


def variant(change):
    """A model with attention that is far from uniform, so that mistakes show."""
    model = LanguageModel(replace(CONFIG, **change))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("W_Q.weight", "W_K.weight", "W_LM.weight", "E.weight")):
                weight *= 6
    return model


def some_ids():
    return torch.randint(0, V, (B, n))


def hooks(model):
    return [
        (part, "attend" in vars(part), len(part._forward_hooks), len(part._forward_pre_hooks))
        for part in model.modules()
    ]


def same(X):
    return X


# ---- record


def test_every_stage_is_recorded_in_order_with_its_shape():
    block = {
        "norm_mha": (B, n, d_model),
        **{f"mha.{name}": (B, h, n, d_head) for name in "QKV"},
        **{f"mha.{name}": (B, h, n, n) for name in "SA"},
        "mha.Z": (B, h, n, d_head),
        "mha.concat": (B, n, h * d_head),
        "mha.addends": (B, h, n, d_model),
        "mha": (B, n, d_model),
        "H": (B, n, d_model),
        "norm_ffn": (B, n, d_model),
        "ffn.pre": (B, n, d_ff),
        "ffn.hidden": (B, n, d_ff),
        "ffn": (B, n, d_model),
    }
    want = {"X0": (B, n, d_model)}
    for i in range(2):
        want |= {f"blocks.{i}.{name}": shape for name, shape in block.items()}
        want[f"blocks.{i}"] = (B, n, d_model)
    want |= {"norm_final": (B, n, d_model), "logits": (B, n, V)}
    shapes = traced_shapes(LanguageModel(CONFIG), some_ids())
    assert shapes == want
    assert list(shapes) == list(want)


@pytest.mark.parametrize("change", VARIANTS)
def test_recording_changes_nothing_and_leaves_nothing(change, double):
    model, ids = variant(change), some_ids()
    before, untouched = hooks(model), model(ids)
    with record(model) as run:
        torch.testing.assert_close(model(ids), untouched)
    torch.testing.assert_close(run["logits"], untouched)
    assert hooks(model) == before
    assert torch.equal(model(ids), untouched)
    # What is beside the attention weights is not even recomputed.
    with record(model, ["*.Z", "*.addends", "*.H", "*ffn*", "X0"]):
        assert torch.equal(model(ids), untouched)


@pytest.mark.parametrize("change", VARIANTS)
def test_what_is_recorded_is_what_it_is_called(change, double):
    model, ids = variant(change), some_ids()
    with record(model) as run:
        model(ids)
    close = torch.testing.assert_close
    close(run["X0"], model.E(ids) + model.P.weight[:n])
    X = run["X0"]
    for i, block in enumerate(model.blocks):
        at = {name: run[f"blocks.{i}.{name}"] for name in EDITABLE}
        mha, pre = block.mha, not isinstance(block, PostNormBlock)
        read = at["norm_mha"] if pre else X
        for name in "QKV":
            projected = getattr(mha, f"W_{name}")(read)
            close(at[f"mha.{name}"], projected.view(B, n, h, d_head).transpose(1, 2))
        Q, K, A = at["mha.Q"], at["mha.K"], at["mha.A"]
        close(at["mha.S"], attention_scores(Q, K))
        close(A, attention_weights(Q, K, causal_mask(n)))
        close(at["mha.Z"], A @ at["mha.V"])
        close(at["mha.concat"], torch.cat(at["mha.Z"].unbind(1), dim=-1))
        for head, strip in enumerate(mha.W_O_slices()):
            close(at["mha.addends"][:, head], at["mha.Z"][:, head] @ strip)
        O = at["mha.addends"].sum(1) + (0 if mha.W_O.bias is None else mha.W_O.bias)
        close(at["mha"], O)
        close(at["H"], X + O if pre else block.norm_mha(X + O))
        if pre:
            close(at["norm_mha"], block.norm_mha(X))
            close(at["norm_ffn"], block.norm_ffn(at["H"]))
        ffn, into = block.ffn, at["norm_ffn"] if pre else at["H"]
        if isinstance(ffn, SwiGLU):
            close(at["ffn.pre"], ffn.W_gate(into))
            close(at["ffn.hidden"], F.silu(at["ffn.pre"]) * run[f"blocks.{i}.ffn.up"])
        else:
            close(at["ffn.pre"], ffn.W_1(into))
            close(at["ffn.hidden"], F.gelu(at["ffn.pre"]))
        close(at["ffn"], ffn.W_2(at["ffn.hidden"]))
        X = at["H"] + at["ffn"] if pre else block.norm_ffn(at["H"] + at["ffn"])
        close(run[f"blocks.{i}"], X)
    close(run["norm_final"], model.norm_final(X))
    close(run["logits"], model.W_LM(run["norm_final"]))


def test_a_filter_keeps_nothing_else():
    model = LanguageModel(CONFIG)
    with record(model, "blocks.*.mha.A") as run:
        model(some_ids())
    assert list(run) == ["blocks.0.mha.A", "blocks.1.mha.A"]
    assert len(run) == 2
    assert repr(run).splitlines()[0] == "blocks.0.mha.A [2, 3, 5, 5]"
    with record(model, iter(["X0", "blocks.1"])) as run:
        model(some_ids())
    assert set(run) == {"X0", "blocks.1"}


def test_unknown_names_are_told_their_neighbours():
    model = LanguageModel(CONFIG)
    with (
        pytest.raises(ValueError, match=r"no activation is called blocks.0.mha.a; .*0\.mha\.A"),
        record(model, "blocks.0.mha.a"),
    ):
        pass
    with (
        pytest.raises(ValueError, match=r"blocks.0.attn"),
        intervene(model, {"blocks.0.attn": same}),
    ):
        pass
    with pytest.raises(ValueError, match="no activation is called"), record(nn.Linear(3, 4)):
        pass
    with record(model, "blocks.*") as run, pytest.raises(KeyError, match="was not computed yet"):
        run["blocks.0"]
    with pytest.raises(KeyError, match=r"logit is not recorded here'$"):
        run["logit"]
    with pytest.raises(KeyError, match=r"block.0 is not recorded here; near it: blocks.0"):
        run["block.0"]


@pytest.mark.parametrize(
    ("part", "names"),
    [
        (PreNormBlock(d_model, h, d_ff), {"X", "mha.A", "mha", "H", "ffn.hidden", "ffn", "out"}),
        (PostNormBlock(d_model, h, d_ff), {"X", "norm_mha", "mha.A", "H", "ffn.hidden", "out"}),
        (MultiHeadAttention(d_model, h, 6), {"Q", "K", "V", "S", "A", "Z", "concat", "out"}),
        (FeedForward(d_model, d_ff), {"pre", "hidden", "out"}),
        (SwiGLU(d_model, d_ff), {"pre", "up", "hidden", "out"}),
        (LayerNorm(d_model), {"out"}),
    ],
)
def test_a_part_alone_has_the_same_names_without_the_path(part, names):
    X = torch.randn(B, n, d_model)
    with record(part) as run:
        out = part(X)
    assert names <= set(run)
    torch.testing.assert_close(run["out"], out)
    if "X" in names:
        assert torch.equal(run["X"], X)
        with record(part) as run:
            part(X=X)
        assert torch.equal(run["X"], X)


def test_a_later_forward_replaces_an_earlier_one():
    model = LanguageModel(CONFIG)
    with record(model, ["X0", "*.A"]) as run:
        model(some_ids())
        text = generate(model, some_ids(), 2, temperature=0)
    assert run["X0"].shape == (B, 1, d_model)
    assert run["blocks.1.mha.A"].shape == (B, h, 1, n + 1)
    torch.testing.assert_close(run["X0"], (model.E(text[:, -2]) + model.P.weight[n])[:, None])


def test_gradients_of_activations(double):
    model, ids = variant({"bias": True}), some_ids()
    untouched = model(ids)
    with record(model, grad=True) as run:
        torch.testing.assert_close(model(ids), untouched)
    run["logits"][:, -1].square().sum().backward()
    for name in run:
        assert run.grad(name).shape == run[name].shape
        assert run.grad(name).abs().sum() > 0, name
    # Each addend is added as it is, so its gradient is the gradient of O.
    for addend in run.grad("blocks.0.mha.addends").unbind(1):
        torch.testing.assert_close(addend, run.grad("blocks.0.mha"))
    # The gradient says what an edit would do.
    for name in (
        "X0",
        "blocks.0.mha.addends",
        "blocks.0.H",
        "blocks.1.ffn.hidden",
        "blocks.0.mha.Q",
    ):
        step = 1e-6 * torch.randn_like(run[name])
        losses = []
        for sign in (1, -1):
            with intervene(model, {name: lambda X, s=sign * step: X + s}):
                losses.append(model(ids)[:, -1].square().sum())
        change = (losses[0] - losses[1]) / 2
        torch.testing.assert_close(change, (run.grad(name) * step).sum(), rtol=1e-4, atol=1e-11)


def test_gradients_that_were_not_kept_are_an_error():
    model, ids = LanguageModel(CONFIG), some_ids()
    with record(model) as run:
        model(ids).sum().backward()
    with pytest.raises(ValueError, match=r"no gradient was kept for blocks.0: use record"):
        run.grad("blocks.0")
    with torch.no_grad(), record(model, grad=True) as run:
        model(ids)
    with pytest.raises(ValueError, match="no gradient was kept"):
        run.grad("X0")
    block, X = PreNormBlock(d_model, h, d_ff), torch.randn(B, n, d_model, requires_grad=True)
    with record(block, "X") as run:
        block(X).sum().backward()
    assert torch.equal(run.grad("X"), X.grad)  # a leaf keeps its own


# ---- intervene


@pytest.mark.parametrize("change", VARIANTS)
@pytest.mark.parametrize("name", ["X0", "norm_final", "logits", "blocks.0", *EDITABLE])
def test_an_identity_edit_changes_nothing_and_another_does(change, name, double):
    model, ids = variant(change), some_ids()
    name = f"blocks.0.{name}" if name in EDITABLE else name
    before, untouched = hooks(model), model(ids)
    with intervene(model, {name: same}):
        torch.testing.assert_close(model(ids), untouched)
    with intervene(model, {name: lambda X: X + torch.randn_like(X)}):
        assert not torch.allclose(model(ids), untouched)
    assert hooks(model) == before
    assert torch.equal(model(ids), untouched)


@pytest.mark.parametrize("change", VARIANTS)
def test_all_identity_edits_and_a_record_at_once(change, double):
    model, ids = variant(change), some_ids()
    with record(model) as plain:
        untouched = model(ids)
    with record(model) as run, intervene(model, {"*": same}):
        torch.testing.assert_close(model(ids), untouched)
    for name in plain:
        torch.testing.assert_close(run[name], plain[name])


@pytest.mark.parametrize("change", VARIANTS)
@pytest.mark.parametrize("name", ["X0", "blocks.0", *EDITABLE])
def test_replacing_by_another_run_gives_what_the_formula_gives(change, name, double):
    """Patch one activation from another text: X0, H and blocks.0 carry all there is."""
    model, one, other = variant(change), some_ids(), some_ids()
    name = f"blocks.0.{name}" if name in EDITABLE else name
    with record(model, [name]) as run:
        there = model(other)
    with intervene(model, {name: set_to(run[name])}):
        here = model(one)
    carries_all = name in ("X0", "blocks.0", "blocks.0.H") or (
        change.get("norm_place") == "post" and name in ("blocks.0.norm_mha", "blocks.0.norm_ffn")
    )
    assert torch.allclose(here, there) == carries_all


@pytest.mark.parametrize("change", VARIANTS)
@pytest.mark.parametrize("name", EDITABLE)
def test_the_mask_stays_in_force_on_every_path(change, name, double):
    model, ids = variant(change), some_ids()
    changed = ids.clone()
    changed[:, 3:] = (ids[:, 3:] + 1) % V

    def to_all(X):
        """Grasp for the future: whatever has two token axes is made uniform."""
        return torch.ones_like(X) if name.endswith((".A", ".S")) else 1.5 * X

    with record(model) as run, intervene(model, {f"blocks.*.{name}": to_all}):
        first, A = model(ids), run["blocks.1.mha.A"]
        assert torch.equal(first[:, :3], model(changed)[:, :3])
        assert not torch.equal(first[:, 3:], model(changed)[:, 3:])
    assert (A[..., ~causal_mask(n)] == 0).all()


def test_a_lost_mask_is_caught(monkeypatch, caught, double):
    model, ids = variant({}), some_ids()
    changed = ids.clone()
    changed[:, 3:] = (ids[:, 3:] + 1) % V
    attend = _Board.attend

    def proof(planted):
        monkeypatch.setattr(_Board, "attend", planted)
        try:
            with record(model):
                assert torch.equal(model(ids)[:, :3], model(changed)[:, :3])
            with intervene(model, {"*.A": lambda A: torch.full_like(A, 1 / n)}):
                assert torch.equal(model(ids)[:, :3], model(changed)[:, :3])
        finally:
            monkeypatch.setattr(_Board, "attend", attend)

    def no_mask(board, Q, K, V, mask):
        return attend(board, Q, K, V, None)

    def mask_before_the_edit_only(board, Q, K, V, mask):
        A = board.edit("A", attention_weights(Q, K, mask))
        return A @ V

    proof(attend)
    caught(proof, no_mask, mask_before_the_edit_only)


def test_without_a_mask_every_token_reads_every_token(double):
    mha, X = MultiHeadAttention(d_model, h), torch.randn(B, n, d_model)
    untouched = mha(X)
    with record(mha) as run, intervene(mha, {"A": same, "S": same}):
        torch.testing.assert_close(mha(X), untouched)
    assert (run["A"] > 0).all()


def test_caches_work_inside(double):
    model, ids = variant({}), some_ids()
    edits = {"*.S": scale(0.5), "*.H": scale(1.1), "*.addends": zero_head(1)}
    with intervene(model, edits):
        caches = model.new_caches()
        parts = [model(part, caches) for part in ids.split([2, 1, 2], dim=1)]
        torch.testing.assert_close(torch.cat(parts, dim=1), model(ids))


def test_a_cut_edge_on_S_is_as_if_it_could_not_be_read(double):
    mha, X = MultiHeadAttention(d_model, h), torch.randn(B, n, d_model)
    mask = causal_mask(n)
    without = mask.clone()
    without[3, 1] = False
    unreadable = mha(X, without)
    with record(mha, "A") as run, intervene(mha, {"S": cut_edge(3, 1)}):
        torch.testing.assert_close(mha(X, mask), unreadable)
    torch.testing.assert_close(run["A"].sum(-1), torch.ones(B, h, n))
    assert (run["A"][:, :, 3, 1] == 0).all()


def test_a_cut_edge_on_A_takes_only_that_share_away(double):
    mha, X, mask = MultiHeadAttention(d_model, h), torch.randn(B, n, d_model), causal_mask(n)
    with record(mha) as plain:
        mha(X, mask)
    with record(mha) as run, intervene(mha, {"A": cut_edge(3, 1, heads=[0, 2])}):
        mha(X, mask)
    want = plain["Z"].clone()
    want[:, [0, 2], 3] -= plain["A"][:, [0, 2], 3, 1, None] * plain["V"][:, [0, 2], 1]
    torch.testing.assert_close(run["Z"], want)
    assert (run["A"][:, [0, 2], 3].sum(-1) < 1).all()
    torch.testing.assert_close(run["A"][:, 1], plain["A"][:, 1])


def test_cutting_an_edge_that_cannot_be_read_changes_nothing(double):
    model, ids = variant({}), some_ids()
    untouched = model(ids)
    with intervene(model, {"*.S": cut_edge(1, 3)}):
        torch.testing.assert_close(model(ids), untouched)


def test_cutting_the_last_edge_of_a_query_is_an_error():
    model = LanguageModel(CONFIG)
    with (
        intervene(model, {"blocks.0.mha.S": cut_edge(0, 0)}),
        pytest.raises(ValueError, match="lets a query read no key at all"),
    ):
        model(some_ids())
    with intervene(model, {"blocks.0.mha.A": cut_edge(0, 0)}):
        assert model(some_ids()).isfinite().all()


@pytest.mark.parametrize("site", ["Z", "addends"])
@pytest.mark.parametrize("bias", [False, True])
def test_a_zeroed_head_adds_nothing(site, bias, double):
    model, ids = variant({"bias": bias}), some_ids()
    mha = model.blocks[1].mha
    with record(model, "blocks.1.mha*") as plain:
        model(ids)
    with record(model) as run, intervene(model, {f"blocks.1.mha.{site}": zero_head(2)}):
        model(ids)
    torch.testing.assert_close(
        run["blocks.1.mha"], plain["blocks.1.mha"] - plain["blocks.1.mha.addends"][:, 2]
    )
    without = mha.W_O.weight.detach().clone()
    without[:, 2 * d_head :] = 0
    mha.W_O.weight = nn.Parameter(without)
    torch.testing.assert_close(model(ids), run["logits"])


def test_one_neuron_and_one_place(double):
    block, X = PreNormBlock(d_model, h, d_ff), torch.randn(B, n, d_model)
    with record(block) as run:
        out = block(X)
    with intervene(block, {"ffn.hidden": set_to(0, at=(..., 7))}):
        less = run["ffn.hidden"][..., 7, None] * block.ffn.W_2.weight[:, 7]
        torch.testing.assert_close(block(X), out - less)
    with intervene(block, {"ffn": scale(3, at=(slice(None), 2))}):
        want = out.clone()
        want[:, 2] += 2 * run["ffn"][:, 2]
        torch.testing.assert_close(block(X), want)
    with intervene(block, {"ffn": scale(0), "mha": scale(0)}):
        assert torch.equal(block(X), X)


def test_interventions_are_seen_by_records_whichever_came_first(double):
    model, ids = LanguageModel(CONFIG), some_ids()
    names, edits = ["blocks.0.mha.A", "blocks.0.H", "blocks.1"], {}
    edits = {name: scale(0.5) for name in names}
    with record(model, names) as outer, intervene(model, edits), record(model, names) as inner:
        model(ids)
    for name in names:
        assert outer[name] is inner[name]
    # Also when one looks at a part of the other.
    with record(model.blocks[0]) as part, intervene(model, edits):
        model(ids)
    assert torch.equal(part["mha.A"], outer["blocks.0.mha.A"])
    assert torch.equal(part["H"], outer["blocks.0.H"])
    assert torch.equal(part["X"], model.E(ids) + model.P.weight[:n])


def test_nested_edits_come_in_the_order_of_their_blocks(double):
    model, ids = LanguageModel(CONFIG), some_ids()
    with record(model, "X0") as run:
        model(ids)
        X0 = run["X0"]
        with intervene(model, {"X0": lambda X: X + 1}):
            with intervene(model, {"X0": lambda X: X * 2}):
                model(ids)
                torch.testing.assert_close(run["X0"], (X0 + 1) * 2)
            model(ids)
            torch.testing.assert_close(run["X0"], X0 + 1)
        model(ids)
        assert torch.equal(run["X0"], X0)


def test_edits_in_place_are_edits_of_a_copy(double):
    model, ids = variant({}), some_ids()

    def in_place(H):
        H[:, 2] = 0
        return H

    with intervene(model, {"blocks.0.H": in_place}):
        out = model(ids)
        out.sum().backward()  # and autograd does not mind
    with intervene(
        model, {"blocks.0.H": lambda H: torch.cat([H[:, :2], 0 * H[:, 2:3], H[:, 3:]], 1)}
    ):
        assert torch.equal(model(ids), out)


@pytest.mark.parametrize("name", ["X0", "blocks.0", *EDITABLE])
def test_gradients_pass_through_edits(name, double):
    model = variant({})
    ids = torch.randint(0, V, (1, 3))
    name = f"blocks.0.{name}" if name in EDITABLE else name
    factor = torch.tensor(0.9, requires_grad=True)

    def run(factor):
        with intervene(model, {name: lambda X: X * factor}):
            return model(ids)[:, -1]

    assert torch.autograd.gradcheck(run, factor)


@pytest.mark.parametrize(
    ("edit", "rule"),
    [
        (lambda A: None, "the edit of blocks.0.mha.A must return a tensor, not None"),
        (lambda A: A[:, 0], r"the shape it was given, \[2, 3, 5, 5\], not \[2, 5, 5\]"),
        (lambda A: A.double(), "torch.float32 on cpu, not torch.float64"),
        (cut_edge(5, 1), "query must lie in 0 … 4, not 5"),
        (cut_edge(1, -1), "key must lie in 0 … 4, not -1"),
        (cut_edge(1, 1, heads=[3]), "head must lie in 0 … 2, not 3"),
    ],
)
def test_edits_that_do_not_fit_are_refused_and_leave_no_trace(edit, rule, as_a_reader):
    model, ids = LanguageModel(CONFIG), some_ids()
    before, untouched = hooks(model), model(ids)
    with pytest.raises(ValueError, match=rule), intervene(model, {"blocks.0.mha.A": edit}):
        model(ids)
    assert hooks(model) == before
    assert torch.equal(model(ids), untouched)


def test_edits_in_the_wrong_place_are_refused():
    model = LanguageModel(CONFIG)
    with (
        pytest.raises(ValueError, match=r"cut_edge works on S or A, not on blocks.0.mha.Z"),
        intervene(model, {"blocks.0.mha.Z": cut_edge(1, 0)}),
    ):
        pass
    with (
        pytest.raises(ValueError, match="zero_head works on Z or addends, not on X0"),
        intervene(model, {"X0": zero_head(1)}),
    ):
        pass
    with (
        intervene(model, {"*.Z": zero_head(3)}),
        pytest.raises(ValueError, match="head must lie in 0 … 2, not 3"),
    ):
        model(some_ids())


def test_all_is_restored_after_an_error():
    model = LanguageModel(CONFIG)
    before = hooks(model)
    with (
        pytest.raises(RuntimeError, match="stumbled"),
        record(model),
        intervene(model, {"*": same}),
    ):
        raise RuntimeError("stumbled")
    assert hooks(model) == before


def test_another_attend_is_respected_not_silently_replaced(double):
    model, ids = LanguageModel(CONFIG), some_ids()

    def unscaled(Q, K, V, mask):
        return F.scaled_dot_product_attention(Q, K, V, attn_mask=mask, scale=1.0)

    model.blocks[1].mha.attend = unscaled
    before, untouched = hooks(model), model(ids)
    with pytest.raises(ValueError, match="this part has another"), record(model):
        pass
    with record(model, ["*.Q", "*.Z", "*.addends"]) as run:
        assert torch.equal(model(ids), untouched)
    assert run["blocks.1.mha.Z"].shape == (B, h, n, d_head)
    assert model.blocks[1].mha.attend is unscaled
    assert hooks(model) == before


def test_a_score_of_minus_infinity_everywhere_else_leaves_one_key():
    mha, X = MultiHeadAttention(d_model, h), torch.randn(B, n, d_model)

    def only_the_first(S):
        S[..., 1:] = -math.inf
        return S

    with record(mha, "A") as run, intervene(mha, {"S": only_the_first}):
        mha(X, causal_mask(n))
    assert (run["A"][..., 0] == 1).all()


def pickled(model):
    return pickle.loads(pickle.dumps(model))


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [deepcopy, pickled, saved])
@pytest.mark.parametrize("change", VARIANTS)
def test_a_copy_made_inside_is_a_copy_of_the_model_itself(copied, change, double):
    model, ids = variant(change), some_ids()
    model.blocks[0].mha.W_O.register_forward_pre_hook(_nothing)  # a hook of the user's own stays
    clean, untouched, before = hooks(deepcopy(model)), model(ids), hooks(model)
    with record(model) as run, intervene(model, {"*.A": scale(0.5), "*.H": scale(2)}):
        with record(model, "X0"):
            copy = copied(model)
        edited = model(ids)
        seen = run["logits"]
        assert torch.equal(copy(ids), untouched)
        assert run["logits"] is seen  # the copy reports to nobody
    assert not torch.allclose(edited, untouched)
    assert [counts for _, *counts in hooks(copy)] == [counts for _, *counts in clean]
    assert hooks(model) == before
    assert all("__reduce_ex__" not in vars(part) for part in [*model.modules(), *copy.modules()])
    assert torch.equal(model(ids), untouched)
    with record(copy, "*.A") as run:  # and it can be looked at as any other
        copy(ids)
    assert len(run) == 2


def _nothing(part, args):
    return None


def test_a_copy_keeps_an_attend_of_its_own():
    mha, X = MultiHeadAttention(d_model, h), torch.randn(B, n, d_model)
    mha.attend = _first_value
    with record(mha, "Z"):
        copy = deepcopy(mha)
    assert copy.attend is _first_value
    assert torch.equal(copy(X), mha(X))


def _first_value(Q, K, V, mask):
    return V[..., :1, :].expand_as(Q)
