import math

import pytest
import torch
from torch import nn

from transformer_block import ACTIVATIONS, LayerNorm, PostNormBlock, PreNormBlock, causal_mask

B, n, d_model, h, d_ff = 2, 5, 12, 3, 20
BLOCKS = {"pre": PreNormBlock, "post": PostNormBlock}


def drawn(Block):
    """Make a block whose γ, β are not at their start, so that no norm hides another."""
    block = Block(d_model, h, d_ff, activation="relu", bias=True)
    for norm in (block.norm_mha, block.norm_ffn):
        nn.init.normal_(norm.gamma, mean=1)
        nn.init.normal_(norm.beta)
    return block


def torchs(block, place):
    """Build nn.TransformerEncoderLayer with the same weights."""
    theirs = nn.TransformerEncoderLayer(
        d_model, h, d_ff, dropout=0.0, activation="relu", batch_first=True,
        norm_first=place == "pre",
    )  # fmt: skip
    mha, ffn = block.mha, block.ffn
    projections = (mha.W_Q, mha.W_K, mha.W_V)
    theirs.load_state_dict(
        {
            "self_attn.in_proj_weight": torch.cat([W.weight for W in projections]),
            "self_attn.in_proj_bias": torch.cat([W.bias for W in projections]),
            "self_attn.out_proj.weight": mha.W_O.weight,
            "self_attn.out_proj.bias": mha.W_O.bias,
            "linear1.weight": ffn.W_1.weight,
            "linear1.bias": ffn.W_1.bias,
            "linear2.weight": ffn.W_2.weight,
            "linear2.bias": ffn.W_2.bias,
            "norm1.weight": block.norm_mha.gamma,
            "norm1.bias": block.norm_mha.beta,
            "norm2.weight": block.norm_ffn.gamma,
            "norm2.bias": block.norm_ffn.beta,
        }
    )
    return theirs


def block_is_torchs(Block, place):
    """The same output, the same gradient of X and of every weight."""
    block, mask = drawn(Block), causal_mask(n)
    theirs = torchs(block, place)
    X = torch.randn(B, n, d_model, requires_grad=True)
    ours_out, theirs_out = block(X, mask), theirs(X, src_mask=~mask)
    torch.testing.assert_close(ours_out, theirs_out)
    V = torch.randn_like(ours_out)
    weights = [block.mha.W_O.weight, block.ffn.W_1.weight, block.norm_ffn.gamma]
    twins = [theirs.self_attn.out_proj.weight, theirs.linear1.weight, theirs.norm2.weight]
    ours_grad = torch.autograd.grad(ours_out, [X, *weights, block.mha.W_K.weight], V)
    theirs_grad = torch.autograd.grad(theirs_out, [X, *twins, theirs.self_attn.in_proj_weight], V)
    for ours, other in zip(ours_grad[:-1], theirs_grad[:-1], strict=True):
        torch.testing.assert_close(ours, other)
    torch.testing.assert_close(ours_grad[-1], theirs_grad[-1][d_model : 2 * d_model])


@pytest.mark.parametrize("place", BLOCKS)
def test_block_is_torchs(place, double):
    block_is_torchs(BLOCKS[place], place)


class AddsTheNorm(PreNormBlock):
    def forward(self, X, mask=None, cache=None):
        H = self.norm_mha(X) + self.mha(self.norm_mha(X), mask, cache)
        return self.norm_ffn(H) + self.ffn(self.norm_ffn(H))


class NoResidual(PreNormBlock):
    def forward(self, X, mask=None, cache=None):
        return self.ffn(self.norm_ffn(self.mha(self.norm_mha(X), mask, cache)))


class FfnReadsX(PreNormBlock):
    def forward(self, X, mask=None, cache=None):
        return X + self.mha(self.norm_mha(X), mask, cache) + self.ffn(self.norm_ffn(X))


class MaskLost(PreNormBlock):
    def forward(self, X, mask=None, cache=None):
        return super().forward(X, None, cache)


def test_mistaken_blocks_are_caught(double, caught):
    caught(
        lambda Block: block_is_torchs(Block, "pre"),
        PostNormBlock, AddsTheNorm, NoResidual, FfnReadsX, MaskLost,
    )  # fmt: skip


def test_the_block_is_its_two_equations(double):
    block, X = drawn(PreNormBlock), torch.randn(B, n, d_model)
    H = X + block.mha(block.norm_mha(X))
    torch.testing.assert_close(block(X), H + block.ffn(block.norm_ffn(H)))


def test_silent_sublayers_leave_the_stream_as_it_is():
    block, X = drawn(PreNormBlock), torch.randn(B, n, d_model)
    for W in (block.mha.W_O, block.ffn.W_2):
        nn.init.zeros_(W.weight)
        nn.init.zeros_(W.bias)
    assert torch.equal(block(X), X)


@pytest.mark.parametrize("place", BLOCKS)
@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
def test_every_kind_keeps_shape_and_causality(place, norm, activation):
    block = BLOCKS[place](d_model, h, d_ff, norm=norm, activation=activation)
    X = torch.randn(B, n, d_model)
    changed = X.clone()
    changed[:, 3:] = -4
    out, other = block(X, causal_mask(n)), block(changed, causal_mask(n))
    assert out.shape == X.shape
    assert torch.equal(out[:, :3], other[:, :3])
    assert not torch.equal(out[:, 3:], other[:, 3:])


@pytest.mark.parametrize("place", BLOCKS)
def test_gradients_are_right(place, double):
    block = BLOCKS[place](4, 2, 3)
    X = torch.randn(1, 3, 4, requires_grad=True)
    assert torch.autograd.gradcheck(lambda X: block(X, causal_mask(3)), X)


@pytest.mark.usefixtures("as_a_reader")
@pytest.mark.parametrize("Block", BLOCKS.values())
def test_bad_input_is_told_clearly(Block):
    with pytest.raises(ValueError, match="n_heads must divide d_model; 12 / 5 leaves 2; try 4 or"):
        Block(d_model, 5, d_ff)
    with pytest.raises(ValueError, match="norm must be one of layer, rms, not 'batch'"):
        Block(d_model, h, d_ff, norm="batch")
    with pytest.raises(ValueError, match="activation must be one of"):
        Block(d_model, h, d_ff, activation="tanh")
    with pytest.raises(ValueError, match="not finite"):
        Block(d_model, h, d_ff)(torch.full((B, n, d_model), math.nan))
    with pytest.raises(ValueError, match="d_model = 12 features"):
        Block(d_model, h, d_ff)(torch.ones(B, n, d_ff))


@pytest.mark.parametrize("Block", BLOCKS.values())
def test_attention_has_no_biases_and_the_ffn_has_unless_told(Block):
    biases = {name for name, _ in Block(d_model, h, d_ff).named_parameters() if "bias" in name}
    assert biases == {"ffn.W_1.bias", "ffn.W_2.bias"}
    block = Block(d_model, h, d_ff)
    assert (type(block.norm_mha), type(block.norm_ffn)) == (LayerNorm, LayerNorm)
    assert block.ffn.activation is ACTIVATIONS["gelu"]
