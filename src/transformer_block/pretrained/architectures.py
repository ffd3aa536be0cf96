"""What the published architectures call the fields and tensors that this book has names for."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Tensor

# Their name of an activation function → ours; where several mean one, the first is written.
ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "linear": "identity",
}

# What their modules call a parameter → what ours do: a linear map or an embedding, a norm.
PARAMETERS = {"weight": ("weight", "gamma"), "bias": ("bias", "beta")}

FOUR_TIMES = "four times d_model"

HEAD = "lm_head.weight"  # stands beside the rest of a model, so it never has the prefix


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """Hold the two short tables that a published architecture is to this book, and what it fixes.

    `fields` is their field → the field of a `ModernConfig`; `optional` what a field means that a
    file leaves out or sets to null; `fixed` the fields of a `ModernConfig` that have one value
    here; `only` their fields for which one value is implemented, with what another would mean.

    `modules` is their module → ours; where theirs holds several of ours side by side, in their
    order. Names of weights come in files with `prefix` or without it. `computed` ends the names
    of tensors that old files hold and that are no weights: they follow from the config.
    """

    model_type: str
    class_name: str
    fields: Mapping[str, str]
    optional: Mapping[str, object]
    fixed: Mapping[str, object]
    only: Mapping[str, tuple[object, str]]
    prefix: str
    modules: Mapping[str, tuple[str, ...]]
    computed: tuple[str, ...]
    in_out: bool = False  # matrices of the blocks are stored [in, out], not as `nn.Linear` does

    def names(self, ours: Mapping[str, Tensor], n_layers: int) -> dict[str, list[str]]:
        """Return the name of each stored tensor → the parameters of ours that it holds."""
        found: dict[str, list[str]] = {}
        for their_module, our_modules in self.modules.items():
            for i in range(n_layers if "{i}" in their_module else 1):
                for end, forms in PARAMETERS.items():
                    here = [f"{m.format(i=i)}.{form}" for m in our_modules for form in forms]
                    if present := [name for name in here if name in ours]:
                        found[f"{their_module.format(i=i)}.{end}"] = present
        return found

    def in_file(self, name: str) -> str:
        """Return a stored tensor's name with the prefix that its kind of model gives it."""
        return name if name == HEAD else self.prefix + name

    def pack(self, name: str, parts: list[Tensor]) -> Tensor:
        """Lay parameters of ours side by side as the stored tensor of that name holds them."""
        whole = torch.cat(parts) if len(parts) > 1 else parts[0]
        return whole.T if self._turned(name, whole) else whole

    def unpack(self, name: str, whole: Tensor, rows: list[int]) -> list[Tensor]:
        """Cut a stored tensor into parameters of ours, each with its own memory where it is cut."""
        if not self._turned(name, whole) and len(rows) == 1:
            return [whole]
        parts = torch.split(whole.T if self._turned(name, whole) else whole, rows)
        return [part.clone(memory_format=torch.contiguous_format) for part in parts]

    def _turned(self, name: str, whole: Tensor) -> bool:
        return self.in_out and name.startswith("h.") and whole.ndim == 2


GPT2 = Architecture(
    model_type="gpt2",
    class_name="GPT2LMHeadModel",
    fields=MappingProxyType(
        {
            "vocab_size": "vocab_size",
            "n_positions": "n_ctx",
            "n_embd": "d_model",
            "n_head": "n_heads",
            "n_layer": "n_layers",
            "n_inner": "d_ff",
            "activation_function": "activation",
            "layer_norm_epsilon": "eps",
            "tie_word_embeddings": "tie_weights",
        }
    ),
    optional=MappingProxyType(
        {
            "n_inner": FOUR_TIMES,
            "activation_function": "gelu_new",
            "layer_norm_epsilon": 1e-5,
            "tie_word_embeddings": True,
        }
    ),
    fixed=MappingProxyType(
        {"norm": "layer", "norm_place": "pre", "positions": "learned", "bias": True}
    ),
    only=MappingProxyType(
        {
            "scale_attn_weights": (True, "scores that are not divided by √d_head"),
            "scale_attn_by_inverse_layer_idx": (False, "scores divided by the block's number"),
            "reorder_and_upcast_attn": (False, "scores in float32 whatever the dtype"),
        }
    ),
    prefix="transformer.",
    modules=MappingProxyType(
        {
            "wte": ("E",),
            "wpe": ("P",),
            "h.{i}.ln_1": ("blocks.{i}.norm_mha",),
            "h.{i}.attn.c_attn": tuple(f"blocks.{{i}}.mha.W_{letter}" for letter in "QKV"),
            "h.{i}.attn.c_proj": ("blocks.{i}.mha.W_O",),
            "h.{i}.ln_2": ("blocks.{i}.norm_ffn",),
            "h.{i}.mlp.c_fc": ("blocks.{i}.ffn.W_1",),
            "h.{i}.mlp.c_proj": ("blocks.{i}.ffn.W_2",),
            "ln_f": ("norm_final",),
            "lm_head": ("W_LM",),
        }
    ),
    computed=(".attn.bias", ".attn.masked_bias"),  # the causal mask, and its −∞
    in_out=True,
)

LLAMA = Architecture(
    model_type="llama",
    class_name="LlamaForCausalLM",
    fields=MappingProxyType(
        {
            "vocab_size": "vocab_size",
            "max_position_embeddings": "n_ctx",
            "hidden_size": "d_model",
            "num_attention_heads": "n_heads",
            "num_key_value_heads": "n_kv_heads",
            "head_dim": "d_head",
            "num_hidden_layers": "n_layers",
            "intermediate_size": "d_ff",
            "rms_norm_eps": "eps",
            "tie_word_embeddings": "tie_weights",
            "attention_bias": "bias",
        }
    ),
    optional=MappingProxyType(
        {
            "num_key_value_heads": 0,  # as many as heads
            "head_dim": 0,  # d_model / h
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": False,
            "attention_bias": False,
        }
    ),
    fixed=MappingProxyType(
        {"norm": "rms", "norm_place": "pre", "positions": "rotary", "activation": "swiglu"}
    ),
    only=MappingProxyType(
        {
            "hidden_act": ("silu", "a gate other than SiLU"),
            "mlp_bias": (False, "biases in the SwiGLU"),
            "partial_rotary_factor": (1.0, "heads of which only some features are turned"),
        }
    ),
    prefix="model.",
    modules=MappingProxyType(
        {
            "embed_tokens": ("E",),
            "layers.{i}.input_layernorm": ("blocks.{i}.norm_mha",),
            "layers.{i}.self_attn.q_proj": ("blocks.{i}.mha.W_Q",),
            "layers.{i}.self_attn.k_proj": ("blocks.{i}.mha.W_K",),
            "layers.{i}.self_attn.v_proj": ("blocks.{i}.mha.W_V",),
            "layers.{i}.self_attn.o_proj": ("blocks.{i}.mha.W_O",),
            "layers.{i}.post_attention_layernorm": ("blocks.{i}.norm_ffn",),
            "layers.{i}.mlp.gate_proj": ("blocks.{i}.ffn.W_gate",),
            "layers.{i}.mlp.up_proj": ("blocks.{i}.ffn.W_1",),
            "layers.{i}.mlp.down_proj": ("blocks.{i}.ffn.W_2",),
            "norm": ("norm_final",),
            "lm_head": ("W_LM",),
        }
    ),
    computed=(".rotary_emb.inv_freq",),  # the θ_i
)

# Llama's computation under other defaults; the sliding window is looked at by `read_config`.
MISTRAL = replace(
    LLAMA,
    model_type="mistral",
    class_name="MistralForCausalLM",
    optional=MappingProxyType({**LLAMA.optional, "num_key_value_heads": 8}),
    fields=MappingProxyType({k: v for k, v in LLAMA.fields.items() if k != "attention_bias"}),
    only=MappingProxyType({**LLAMA.only, "attention_bias": (False, "biases in the attention")}),
)

ARCHITECTURES = {each.model_type: each for each in (GPT2, LLAMA, MISTRAL)}
