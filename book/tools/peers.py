"""The models that the benchmarks set beside ours: other code, the same weights, the same numbers.

Each peer is built from a model of ours and given its weights; `Peer.check` compares the logits
before anything is timed.
"""

import importlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_block import pretrained
from transformer_block.generation import generate
from transformer_block.language_model import LanguageModel

NEAR = 2e-4  # float32, another order of summation, up to a dozen blocks


@dataclass(frozen=True)
class Peer:
    """Hold a model under its name: how its logits come, and how it writes on."""

    name: str
    model: nn.Module
    logits: Callable[[Tensor], Tensor]
    write: Callable[[Tensor, int], Tensor] | None  # prompts and how many tokens; greedy, cached

    def check(self, ours: LanguageModel, ids: Tensor) -> None:
        """Refuse a peer that does not compute what ours does: its times would say nothing.

        Raises:
            ValueError: naming the peer and the largest difference.
        """
        with torch.no_grad():
            off = float((self.logits(ids) - ours(ids)).abs().max())
        if not off < NEAR:
            raise ValueError(f"the logits of {self.name} are off by {off:.2g}; it is another model")


def ours(model: LanguageModel) -> Peer:
    """Return our own model as one of the peers."""
    return Peer("this book", model, model, partial(generate, model, temperature=0))


class Fused(nn.Module):
    """A block as nanoGPT lays it out: Q, K and V in one product, the causal kernel told so."""

    def __init__(self, d_model: int, n_heads: int, d_ff: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.norms = nn.ModuleList(nn.LayerNorm(d_model) for _ in range(2))
        self.c_attn = nn.Linear(d_model, 3 * d_model)
        self.c_proj = nn.Linear(d_model, d_model)
        self.up, self.down = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)

    def forward(self, X: Tensor) -> Tensor:
        """Return the stream after this block."""
        B, n, d_model = X.shape
        QKV: tuple[Tensor, ...] = self.c_attn(self.norms[0](X)).split(d_model, dim=2)
        Q, K, V = (T.view(B, n, self.n_heads, -1).transpose(1, 2) for T in QKV)
        Z = F.scaled_dot_product_attention(Q, K, V, is_causal=True)
        X = X + self.c_proj(Z.transpose(1, 2).reshape(B, n, d_model))
        return X + self.down(F.gelu(self.up(self.norms[1](X)), approximate="tanh"))


class Wrapped(nn.Module):
    """Blocks between the two embeddings, the last norm and the head: what is not being compared."""

    def __init__(self, model: LanguageModel, blocks: nn.Module) -> None:
        super().__init__()
        config = model.config
        self.E = nn.Embedding(config.vocab_size, config.d_model)
        self.P = nn.Embedding(config.n_ctx, config.d_model)
        self.blocks = blocks
        self.norm = nn.LayerNorm(config.d_model)
        self.head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.mask: Tensor
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(config.n_ctx))
        copy = {
            self.E: model.E,
            self.P: model.P,
            self.norm: model.norm_final,
            self.head: model.W_LM,
        }
        for theirs, our in copy.items():
            take(theirs, our)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits."""
        n = ids.shape[1]
        X = self.E(ids) + self.P.weight[:n]
        if isinstance(self.blocks, nn.TransformerEncoder):
            X = self.blocks(X, mask=self.mask[:n, :n], is_causal=True)
        else:
            X = self.blocks(X)
        return self.head(self.norm(X))


@torch.no_grad()
def take(theirs: Any, *our: Any) -> None:
    """Give a module the parameters of ours, several laid side by side."""
    parts = [list(module.parameters()) for module in our]
    for place, parameter in enumerate(theirs.parameters()):
        parameter.copy_(torch.cat([part[place] for part in parts]))


def nano(model: LanguageModel) -> Peer:
    """Build nanoGPT's architecture from torch's own layers."""
    c = model.config
    theirs: Any
    our: Any
    blocks = nn.Sequential(*(Fused(c.d_model, c.n_heads, c.d_ff) for _ in range(c.n_layers)))
    for theirs, our in zip(blocks, model.blocks, strict=True):
        take(theirs.norms[0], our.norm_mha)
        take(theirs.c_attn, our.mha.W_Q, our.mha.W_K, our.mha.W_V)
        take(theirs.c_proj, our.mha.W_O)
        take(theirs.norms[1], our.norm_ffn)
        take(theirs.up, our.ffn.W_1)
        take(theirs.down, our.ffn.W_2)
    whole = Wrapped(model, blocks)
    return Peer("nanoGPT's layout", whole, whole, None)


def encoder(model: LanguageModel) -> Peer:
    """Build the stack from `nn.TransformerEncoderLayer(norm_first=True)`."""
    c = model.config
    theirs: Any
    our: Any
    layer = nn.TransformerEncoderLayer(
        c.d_model, c.n_heads, c.d_ff, 0.0, _gelu_tanh, batch_first=True, norm_first=True
    )
    blocks = nn.TransformerEncoder(layer, c.n_layers, enable_nested_tensor=False)
    for theirs, our in zip(blocks.layers, model.blocks, strict=True):
        qkv = (our.mha.W_Q, our.mha.W_K, our.mha.W_V)
        with torch.no_grad():
            theirs.self_attn.in_proj_weight.copy_(torch.cat([W.weight for W in qkv]))
            theirs.self_attn.in_proj_bias.copy_(torch.cat([W.bias for W in qkv]))
        take(theirs.self_attn.out_proj, our.mha.W_O)
        take(theirs.linear1, our.ffn.W_1)
        take(theirs.linear2, our.ffn.W_2)
        take(theirs.norm1, our.norm_mha)
        take(theirs.norm2, our.norm_ffn)
    whole = Wrapped(model, blocks)
    return Peer("nn.TransformerEncoder", whole, whole, None)


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def reference(model: LanguageModel) -> Peer:
    """Build Hugging Face's model from files that ours has written: GPT-2, or Llama."""
    transformers: Any = importlib.import_module("transformers")  # slow, and only this needs it
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        pretrained.save(model, folder)
        theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)

    def write(ids: Tensor, n_new: int) -> Tensor:
        return theirs.generate(
            ids, max_new_tokens=n_new, do_sample=False, eos_token_id=-1, pad_token_id=0
        )

    kind = {"gpt2": "GPT-2", "llama": "Llama"}[theirs.config.model_type]
    return Peer(f"Hugging Face {kind}", theirs, lambda ids: theirs(ids).logits, write)
