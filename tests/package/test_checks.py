import math
import threading

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from transformer_block import (
    AttentionHead,
    FeedForward,
    LanguageModel,
    LayerNorm,
    ModelConfig,
    MultiHeadAttention,
    PostNormBlock,
    PreNormBlock,
    RMSNorm,
    SwiGLU,
    _checks,
    attention_weights,
    causal_mask,
    generate,
    next_token_loss,
)

B, n, d_model, h, d_ff, V = 2, 5, 12, 3, 20, 17
CONFIG = ModelConfig(vocab_size=V, n_ctx=7, d_model=d_model, n_heads=h, n_layers=2, d_ff=d_ff)
PARTS = {
    "head": AttentionHead(d_model, 4),
    "layer": LayerNorm(d_model),
    "rms": RMSNorm(d_model),
    "ffn": FeedForward(d_model, d_ff),
    "swiglu": SwiGLU(d_model, d_ff),
    "mha": MultiHeadAttention(d_model, h),
    "pre": PreNormBlock(d_model, h, d_ff),
    "post": PostNormBlock(d_model, h, d_ff),
}


def looks(monkeypatch):
    """Count how often values are looked at."""
    seen = []
    for name in ("finite", "readable"):
        look = getattr(_checks, name)
        monkeypatch.setattr(_checks, name, lambda *a, f=look, n=name: (seen.append(n), f(*a)))
    return seen


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_every_part_alone_refuses_what_is_not_finite(name, value):
    X = torch.zeros(B, n, d_model)
    X[1, 2, 3] = value
    for _ in range(2):  # and the error leaves the door as it was
        with pytest.raises(ValueError, match="X holds 1 values that are not finite"):
            PARTS[name](X)
        with pytest.raises(ValueError, match="X holds 1 values that are not finite"):
            PARTS[name](X=X)


@pytest.mark.parametrize("name", ["head", "mha", "pre", "post"])
def test_every_part_alone_refuses_a_mask_that_hides_all(name):
    X = torch.zeros(B, n, d_model)
    for call in (lambda mask: PARTS[name](X, mask), lambda mask: PARTS[name](mask=mask, X=X)):
        with pytest.raises(ValueError, match="lets a query read no key"):
            call(causal_mask(n).tril(-1))


@pytest.mark.usefixtures("as_a_reader")
@pytest.mark.parametrize("name", ["head", "mha", "pre", "post"])
def test_a_mask_of_numbers_is_told_by_its_kind(name):
    with pytest.raises(ValueError, match="a mask must be boolean"):
        PARTS[name](torch.zeros(B, n, d_model), torch.full((n, n), -math.inf).triu(1))


@pytest.mark.parametrize("name", ["pre", "post"])
def test_a_block_looks_once(name, monkeypatch):
    seen, X = looks(monkeypatch), torch.zeros(B, n, d_model)
    PARTS[name](X, causal_mask(n))
    assert seen == ["finite", "readable"]
    PARTS[name](X)
    assert seen == ["finite", "readable", "finite"]


def test_a_model_looks_at_its_ids_and_no_further(monkeypatch):
    model, ids = LanguageModel(CONFIG), torch.randint(0, V, (B, n))
    seen = looks(monkeypatch)
    model(ids)
    model(ids=ids)
    model(ids, model.new_caches())
    assert seen == []
    model.blocks[0](model.E(ids))  # used alone, a part of it is a door again
    assert seen == ["finite"]


def test_a_thread_inside_a_door_does_not_open_it_to_another():
    model, said = LanguageModel(CONFIG), []

    def elsewhere():
        try:
            PARTS["layer"](torch.full((n, d_model), math.nan))
        except ValueError as error:
            said.append(str(error))

    def meanwhile(part, args):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()

    model.blocks[1].register_forward_pre_hook(meanwhile)
    model(torch.randint(0, V, (B, n)))
    assert len(said) == 1


def test_large_numbers_whose_sum_overflows_are_finite():
    _checks.finite(torch.full((3, d_model), 3e38))
    with pytest.raises(ValueError, match="Y holds 2 values"):
        _checks.finite(torch.tensor([3e38, 3e38, math.inf, math.nan]), "Y")


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's, of the fused kernel
def test_values_that_cannot_be_read_pass():
    X = torch.randn(4, n, d_model)
    masks = torch.stack([causal_mask(n, 0), torch.ones(n, n, dtype=torch.bool)])
    for name in ("head", "mha", "pre", "post"):
        part = PARTS[name]
        each = torch.func.vmap(part, (None, 0))(X, masks)
        for got, mask in zip(each, masks, strict=True):
            torch.testing.assert_close(got, part(X, mask))
    with FakeTensorMode(allow_non_fake_inputs=True):
        for part in PARTS.values():
            assert part(torch.empty(B, n, d_model)).shape[:2] == (B, n)


def test_masks_by_vmap_give_weights():
    Q, masks = torch.randn(n, 4), torch.stack([causal_mask(n), torch.eye(n).bool()])
    each = torch.func.vmap(lambda mask: attention_weights(Q, Q, mask))(masks)
    for A, mask in zip(each, masks, strict=True):
        torch.testing.assert_close(A, attention_weights(Q, Q, mask))


# ---- ids: one rule for the model, the loss and generate


def readers_of_ids():
    model = LanguageModel(CONFIG)
    logits = torch.randn(B, n, V)
    return {
        "model": model,
        "loss": lambda ids: next_token_loss(logits, ids),
        "generate": lambda ids: generate(model, ids, 2, temperature=0),
    }


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32]
)
def test_every_kind_of_whole_number_is_read_alike(dtype):
    ids = torch.randint(0, V, (B, n))
    for read in readers_of_ids().values():
        assert torch.equal(read(ids.to(dtype)), read(ids))


def test_ids_of_bytes_do_not_wrap_what_is_left_out():
    logits, ids = torch.randn(B, n, V), torch.randint(0, V, (B, n))
    counts = torch.rand(B, n) < 0.5
    counts[0, 1] = True
    assert torch.equal(
        next_token_loss(logits, ids.byte(), counts), next_token_loss(logits, ids, counts)
    )


@pytest.mark.usefixtures("as_a_reader")
@pytest.mark.parametrize(
    ("ids", "says"),
    [
        (torch.ones(B, n), r"ids must be whole numbers \[B, n\], not torch.float32 \[2, 5\]$"),
        (torch.ones(B, n).bool(), r"whole numbers \[B, n\], not torch.bool"),
        (torch.ones(B, n).cfloat(), r"whole numbers \[B, n\], not torch.complex64"),
        (torch.ones(n).long(), r"\[B, n\], not torch.int64 \[5\]; one sequence is ids\[None\]"),
        (torch.ones(B, n, 1).long(), r"\[B, n\], not torch.int64 \[2, 5, 1\]$"),
        (torch.ones(B, 0).long(), r"ids hold no token \(shape \[2, 0\]\)"),
        (torch.full((B, n), V), "ids must lie in 0 … 16, but run from 17 to 17"),
        (torch.tensor([[3, -1]] * B), "ids must lie in 0 … 16, but run from -1 to 3"),
        (torch.tensor([[3, -100]] * B), "run from -100 to 3"),
    ],
)
def test_what_is_no_id_is_refused_alike(ids, says):
    for read in readers_of_ids().values():
        with pytest.raises(ValueError, match=says):
            read(ids)


def test_the_largest_and_the_smallest_id_are_ids():
    ids = torch.tensor([[0, V - 1]])
    assert torch.equal(_checks.ids(ids, V), ids)


# ---- sizes


@pytest.mark.usefixtures("as_a_reader")
@pytest.mark.parametrize("size", [0, -1, 2.0, True, False, None, "3"])
def test_what_is_no_size_is_refused(size):
    _checks.positive(d=1, e=2)
    with pytest.raises(ValueError, match=f"^e must be a whole number of at least 1, not {size!r}$"):
        _checks.positive(d=1, e=size)


@pytest.mark.usefixtures("as_a_reader")
def test_a_stream_is_told_by_its_last_two_axes():
    _checks.stream(torch.ones(d_model), d_model)
    _checks.stream(torch.ones(0, 1, d_model), d_model)
    with pytest.raises(ValueError, match=r"X holds no token \(shape \[3, 0, 12\]\)"):
        _checks.stream(torch.ones(3, 0, d_model), d_model)
    with pytest.raises(ValueError, match="the last axis of Y must have d_model = 12 features"):
        _checks.stream(torch.ones(d_model, 3), d_model, "Y")
    with pytest.raises(ValueError, match=r"but its shape is \[\]"):
        _checks.stream(torch.tensor(1.0), d_model)
