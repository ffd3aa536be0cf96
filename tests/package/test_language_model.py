import dataclasses
import math
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from transformer_block import (
    LanguageModel,
    LayerNorm,
    ModelConfig,
    PostNormBlock,
    PreNormBlock,
    RMSNorm,
    causal_mask,
    initialise,
    record,
    traced_shapes,
)

B, n = 2, 5
CONFIG = ModelConfig(vocab_size=17, n_ctx=7, d_model=12, n_heads=3, n_layers=2, d_ff=20)
VARIANTS = [
    {},
    {"norm_place": "post"},
    {"norm": "rms", "activation": "swiglu"},
    {"tie_weights": True, "bias": True},
]


def variant(change):
    return LanguageModel(dataclasses.replace(CONFIG, **change))


def some_ids(length=n):
    return torch.randint(0, CONFIG.vocab_size, (B, length))


def test_it_is_its_pipeline(double):
    model, ids = LanguageModel(CONFIG), some_ids()
    X = F.one_hot(ids, 17).double() @ model.E.weight + model.P.weight[:n]
    for block in model.blocks:
        X = block(X, causal_mask(n))
    X = F.layer_norm(X, (12,), model.norm_final.gamma, model.norm_final.beta)
    torch.testing.assert_close(model(ids), X @ model.W_LM.weight.T)


def test_post_norm_ends_without_one_norm_too_many():
    assert isinstance(variant({"norm_place": "post"}).norm_final, nn.Identity)
    assert isinstance(variant({}).norm_final, type(variant({}).blocks[0].norm_mha))


@pytest.mark.parametrize("change", VARIANTS)
def test_the_future_changes_no_earlier_bit(change):
    model, ids = variant(change), some_ids()
    changed = ids.clone()
    changed[:, 3:] = (ids[:, 3:] + 1) % 17
    assert torch.equal(model(ids)[:, :3], model(changed)[:, :3])
    assert not torch.equal(model(ids)[:, 3:], model(changed)[:, 3:])


@pytest.mark.parametrize("change", VARIANTS)
@pytest.mark.parametrize("steps", [[1] * n, [2, 3], [4, 1]])
def test_caches_change_nothing(change, steps, double):
    model, ids = variant(change), some_ids()
    caches = model.new_caches()
    parts = [model(part, caches) for part in ids.split(steps, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), model(ids))


@pytest.mark.parametrize("tied", [False, True])
def test_tying_is_one_tensor_with_gradient_from_both_uses(tied):
    model, ids = variant({"tie_weights": tied}), some_ids()
    parameters = sum(p.numel() for p in model.parameters())
    assert parameters == sum(p.numel() for p in variant({}).parameters()) - tied * 17 * 12
    model(ids).logsumexp(-1).sum().backward()
    unseen = [i for i in range(17) if i not in ids]
    assert (model.E.weight.grad[unseen].abs().sum() > 0) == tied


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("d_model", "vocab_size"), [(32, 41), (64, 168), (512, 1000)])
@pytest.mark.parametrize("place", ["pre", "post"])
def test_the_first_loss_is_near_ln_V(tied, d_model, vocab_size, place):
    model = variant(
        {"tie_weights": tied, "d_model": d_model, "vocab_size": vocab_size, "n_heads": 4,
         "norm_place": place, "d_ff": 4 * d_model}
    )  # fmt: skip
    ids = torch.randint(0, vocab_size, (64, 7))
    loss = F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    assert loss.item() == pytest.approx(math.log(vocab_size), abs=0.2)


def test_a_usual_first_loss_is_not():
    model = variant({"tie_weights": True, "d_model": 512, "n_heads": 8, "vocab_size": 1000})
    nn.init.normal_(model.E.weight)  # PyTorch's own start of an embedding, tied to the head
    ids = torch.randint(0, 1000, (64, 7))
    assert F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()) > 50


def test_the_initialisation_is_its_table():
    model = variant({"d_model": 96, "d_ff": 70, "vocab_size": 500, "bias": True})
    before = model.blocks[0].ffn.W_1.weight.clone()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(5)
    initialise(model)
    assert not torch.equal(model.blocks[0].ffn.W_1.weight, before)
    for linear in (model.blocks[1].mha.W_O, model.blocks[0].ffn.W_2):
        bound = 1 / math.sqrt(linear.in_features)
        assert 0.9 * bound < linear.weight.abs().max() <= bound
        assert 0.7 * bound < linear.bias.abs().max() <= bound
    assert model.E.weight.std().item() == pytest.approx(0.1, rel=0.05)
    assert model.P.weight.std().item() == pytest.approx(0.1, rel=0.1)
    assert model.W_LM.weight.std().item() == pytest.approx(1 / 96, rel=0.05)
    assert (model.norm_final.gamma == 1).all()
    assert (model.blocks[0].norm_mha.beta == 0).all()
    tied = variant({"d_model": 96, "vocab_size": 500, "tie_weights": True})
    assert tied.E.weight.std().item() == pytest.approx(0.4 / 96**0.5, rel=0.05)
    assert isinstance(tied.blocks[0], PreNormBlock)


def test_the_state_holds_weights_only():
    kinds = {name.rsplit(".", 1)[-1] for name in LanguageModel(CONFIG).state_dict()}
    assert kinds == {"weight", "bias", "gamma", "beta"}  # no mask in it


def test_it_compiles_to_the_same(double):
    model, ids = LanguageModel(CONFIG), some_ids()
    exported = torch.export.export(model, (ids,)).module()
    torch.testing.assert_close(exported(ids), model(ids))


@pytest.mark.usefixtures("as_a_reader")
@pytest.mark.parametrize(
    ("ids", "says"),
    [
        (torch.tensor([[3, 17]]), "ids must lie in 0 … 16, but run from 3 to 17"),
        (torch.tensor([[-1, 4]]), "ids must lie in 0 … 16, but run from -1 to 4"),
        (torch.tensor([[1.0, 2.0]]), "ids must be whole numbers"),
        (torch.tensor([1, 2]), r"ids must be whole numbers \[B, n\], not torch.int64 \[2\]"),
        (torch.zeros(1, 0, dtype=torch.long), "hold no token"),
        (torch.zeros(1, 8, dtype=torch.long), "at most n_ctx = 7 tokens, not 8; shorten the text"),
    ],
)
def test_bad_ids_are_told_clearly(ids, says):
    with pytest.raises(ValueError, match=says):
        LanguageModel(CONFIG)(ids)


def test_a_full_cache_is_told_clearly():
    model = LanguageModel(CONFIG)
    caches = model.new_caches()
    model(some_ids(7), caches)
    with pytest.raises(ValueError, match="at most n_ctx = 7 tokens, not 8"):
        model(some_ids(1), caches)


def test_the_config_decides_the_block():
    blocks = {place: variant({"norm_place": place}).blocks for place in ("pre", "post")}
    assert {place: [type(b) for b in stack] for place, stack in blocks.items()} == {
        "pre": [PreNormBlock] * 2,
        "post": [PostNormBlock] * 2,
    }
    rms = variant({"norm": "rms", "bias": True, "n_layers": 1})
    assert isinstance(rms.norm_final, RMSNorm)
    assert isinstance(rms.blocks[0].norm_ffn, RMSNorm)
    assert rms.blocks[0].mha.W_Q.bias is not None


class Parallel(nn.Module):
    """X' = X + MHA(Norm(X)) + FFN(Norm(X)): a block that the package has not."""

    def __init__(self, config):
        super().__init__()
        parts = PreNormBlock(config.d_model, config.n_heads, config.d_ff)
        self.norm, self.mha, self.ffn = LayerNorm(config.d_model), parts.mha, parts.ffn

    def forward(self, X, mask=None, cache=None):
        normed = self.norm(X)
        return X + self.mha(normed, mask, cache) + self.ffn(normed)


def test_other_blocks_can_be_stacked(double):
    model, ids = LanguageModel(CONFIG, block=Parallel), some_ids()
    assert [type(block) for block in model.blocks] == [Parallel] * 2
    assert model.blocks[0].mha is not model.blocks[1].mha
    with record(model, ["blocks.0", "X0", "blocks.0.mha.A"]) as run:
        logits = model(ids)
    block, X = model.blocks[0], run["X0"]
    normed = F.layer_norm(X, (12,), block.norm.gamma, block.norm.beta)
    expected = X + block.mha(normed, causal_mask(n)) + block.ffn(normed)
    torch.testing.assert_close(run["blocks.0"], expected)
    caches = model.new_caches()
    parts = [model(part, caches) for part in ids.split([2, 3], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), logits)


def test_a_model_on_the_meta_device_gives_shapes():
    with torch.device("meta"):
        model = LanguageModel(CONFIG)
    ids = torch.zeros(B, n, dtype=torch.long, device="meta")
    assert model(ids).shape == (B, n, 17)
    assert traced_shapes(model, ids) == traced_shapes(LanguageModel(CONFIG), some_ids())
    with pytest.raises(ValueError, match="at most n_ctx = 7"):
        model(ids.repeat(1, 2))


def test_every_kind_of_integer_is_an_id():
    model, ids = LanguageModel(CONFIG), some_ids()
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16):
        assert torch.equal(model(ids.to(dtype)), model(ids))


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's, of the fused kernel
def test_transforms_over_ids_work(double):
    """Gradients for each sequence, by vmap, are those of one sequence after another."""
    model, many = LanguageModel(CONFIG), torch.randint(0, 17, (3, 1, n))
    weights = dict(model.named_parameters())

    def loss(weights, ids):
        return torch.func.functional_call(model, weights, (ids,)).logsumexp(-1).sum()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, many)
    for i, ids in enumerate(many):
        one = torch.autograd.grad(loss(weights, ids), list(weights.values()))
        for name, grad in zip(weights, one, strict=True):
            torch.testing.assert_close(each[name][i], grad)


def test_the_graph_is_whole_under_compile():
    """In a process of its own: the shape checker of the tests cannot be compiled."""
    code = f"""
import dataclasses, torch
from transformer_block import LanguageModel, ModelConfig, PreNormBlock, causal_mask
for change in {VARIANTS!r}:
    model = LanguageModel(dataclasses.replace({CONFIG!r}, **change)).double()
    ids = torch.randint(0, 17, (2, 5))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(ids), model(ids))
X, block = torch.randn(2, 5, 12), PreNormBlock(12, 3, 20)
compiled = torch.compile(block, backend="eager", fullgraph=True)
torch.testing.assert_close(compiled(X, causal_mask(5)), block(X, causal_mask(5)))
"""
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
