"""Our block and torch's `nn.TransformerEncoderLayer`, weight for weight."""

import torch
from torch import Tensor, nn

from transformer_block.block import PostNormBlock, PreNormBlock
from transformer_block.feed_forward import SwiGLU
from transformer_block.norm import RMSNorm


def torchs_names(block: PreNormBlock) -> dict[str, list[Tensor]]:
    """Say which of our weights stand one below the other in each of torch's.

    torch keeps W_Q, W_K and W_V in one `in_proj_weight`; everything else is one to one. Both
    store a matrix transposed. Biases that our block lacks are left out.

    Raises:
        ValueError: for a block with RMSNorm or SwiGLU, which torch's layer has not.
    """
    mha, ffn = block.mha, block.ffn
    if isinstance(ffn, SwiGLU) or isinstance(block.norm_mha, RMSNorm):
        raise ValueError('torch\'s layer has LayerNorm and a two-layer FFN only; use norm="layer"')
    names: dict[str, list[Tensor]] = {
        "self_attn.in_proj_weight": [mha.W_Q.weight, mha.W_K.weight, mha.W_V.weight],
        "self_attn.out_proj.weight": [mha.W_O.weight],
        "linear1.weight": [ffn.W_1.weight],
        "linear1.bias": [ffn.W_1.bias],
        "linear2.weight": [ffn.W_2.weight],
        "linear2.bias": [ffn.W_2.bias],
    }
    for number, norm in enumerate((block.norm_mha, block.norm_ffn), 1):
        gamma, beta = norm.parameters()
        names |= {f"norm{number}.weight": [gamma], f"norm{number}.bias": [beta]}
    if mha.W_Q.bias is not None:
        names["self_attn.in_proj_bias"] = [mha.W_Q.bias, mha.W_K.bias, mha.W_V.bias]
        names["self_attn.out_proj.bias"] = [mha.W_O.bias]
    return names


def torchs_layer(block: PreNormBlock) -> nn.TransformerEncoderLayer:
    """Build torch's layer with copies of the block's weights, Pre-Norm or Post-Norm as it is.

    Its mask means the opposite of ours: `layer(X, src_mask=~causal_mask(n))`.
    """
    names = torchs_names(block)
    layer = nn.TransformerEncoderLayer(
        block.mha.d_model,
        block.mha.n_heads,
        block.ffn.W_1.out_features,
        dropout=0.0,
        activation=block.ffn.activation,  # type: ignore[arg-type]  # a function of one tensor
        norm_first=not isinstance(block, PostNormBlock),
        batch_first=True,
        dtype=block.mha.W_Q.weight.dtype,
    )
    for name, theirs in layer.named_parameters():
        ours = torch.cat([*names[name]]) if name in names else torch.zeros_like(theirs)
        theirs.data.copy_(ours)
    return layer


def gradients_by_torchs_name(block: PreNormBlock) -> dict[str, Tensor]:
    """Return the gradients of the block's weights under torch's names, after `backward()`."""
    return {
        name: torch.cat([weight.grad for weight in weights if weight.grad is not None])
        for name, weights in torchs_names(block).items()
    }
