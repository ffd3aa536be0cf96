"""Look at every activation of a run by its name, and change any of them."""

from transformer_block.activations.editing import (
    SiteEdit,
    cut_edge,
    intervene,
    scale,
    set_to,
    zero_head,
)
from transformer_block.activations.recording import Run, record, traced_shapes

__all__ = [
    "Run",
    "SiteEdit",
    "cut_edge",
    "intervene",
    "record",
    "scale",
    "set_to",
    "traced_shapes",
    "zero_head",
]
