import pytest
import torch
from torch import nn

from transformer_block import PostNormBlock, PreNormBlock, causal_mask
from transformer_block.notebook.torchs import (
    gradients_by_torchs_name,
    torchs_layer,
    torchs_names,
)

B, n, d_model, h, d_ff = 2, 5, 12, 3, 20


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
    layer = torchs_layer(block)
    X, probe = torch.randn(B, n, d_model), torch.randn(B, n, d_model)
    ours, theirs = block(X, mask), layer(X, src_mask=~mask)
    torch.testing.assert_close(ours, theirs)
    (ours * probe).sum().backward()
    (theirs * probe).sum().backward()
    mine = gradients_by_torchs_name(block)
    for name, weight in layer.named_parameters():
        if bias or not name.startswith("self_attn") or name.endswith("weight"):
            torch.testing.assert_close(mine.pop(name), weight.grad)
    assert not mine


def test_the_layer_has_copies():
    block = drawn(PreNormBlock)
    layer = torchs_layer(block)
    nn.init.zeros_(layer.linear1.weight)
    assert block.ffn.W_1.weight.any()


def test_no_weight_is_left_out():
    block = drawn(PreNormBlock, bias=True)
    ours = [weight for weights in torchs_names(block).values() for weight in weights]
    assert {id(p) for p in ours} == {id(p) for p in block.parameters()}


@pytest.mark.parametrize("settings", [{"norm": "rms"}, {"activation": "swiglu"}])
def test_what_torch_has_not_is_refused(settings):
    with pytest.raises(ValueError, match="LayerNorm and a two-layer FFN only"):
        torchs_layer(PreNormBlock(d_model, h, d_ff, **settings))
