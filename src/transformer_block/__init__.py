"""The Transformer block, part by part: everything from one head to a trained language model."""

from transformer_block.ablation import freeze_all_but, without
from transformer_block.activations import (
    cut_edge,
    intervene,
    record,
    scale,
    set_to,
    traced_shapes,
    zero_head,
)
from transformer_block.attention import (
    AttentionHead,
    attention_scores,
    attention_weights,
    causal_mask,
)
from transformer_block.block import PostNormBlock, PreNormBlock
from transformer_block.checkpoint import load, save
from transformer_block.config import ModelConfig
from transformer_block.counting import (
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
from transformer_block.feed_forward import ACTIVATIONS, FeedForward, SwiGLU
from transformer_block.generation import generate, next_token_probs
from transformer_block.language import ToyLanguage, join, toy_language
from transformer_block.language_model import LanguageModel, initialise
from transformer_block.multi_head import KeyValueCache, MultiHeadAttention
from transformer_block.norm import LayerNorm, RMSNorm
from transformer_block.training import (
    Job,
    Recipe,
    TrainingRun,
    next_token_loss,
    run_job,
    toy_config,
    train,
    train_many,
    trained,
)

__all__ = [
    "ACTIVATIONS",
    "AttentionHead",
    "FeedForward",
    "Job",
    "KeyValueCache",
    "LanguageModel",
    "LayerNorm",
    "ModelConfig",
    "MultiHeadAttention",
    "PostNormBlock",
    "PreNormBlock",
    "RMSNorm",
    "Recipe",
    "SwiGLU",
    "ToyLanguage",
    "TrainingRun",
    "activation_bytes",
    "attention_scores",
    "attention_weights",
    "block_flops",
    "cache_bytes",
    "causal_mask",
    "count_parameters",
    "cut_edge",
    "flops",
    "freeze_all_but",
    "generate",
    "generation_flops",
    "initialise",
    "intervene",
    "join",
    "load",
    "next_token_loss",
    "next_token_probs",
    "parameter_table",
    "record",
    "run_job",
    "save",
    "scale",
    "set_to",
    "shape_ledger",
    "toy_config",
    "toy_language",
    "traced_shapes",
    "train",
    "train_many",
    "trained",
    "weight_bytes",
    "without",
    "zero_head",
]
