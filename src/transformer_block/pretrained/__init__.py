"""Read the weights that others have published into this book's classes, and write them back."""

from transformer_block.pretrained.configs import read_config
from transformer_block.pretrained.models import load, save
from transformer_block.pretrained.tokens import load_tokenizer

__all__ = ["load", "load_tokenizer", "read_config", "save"]
