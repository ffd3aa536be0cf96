"""The one drawing of the block, with the part that a chapter is about lit."""

import re
from importlib import resources

from transformer_block.figures.picture import Picture

# part → what the drawing's text says is lit
PARTS = {
    "embedding": "the embedding and positions",
    "norm_mha": "the first norm",
    "mha": "multi-head attention",
    "heads": "the heads",
    "concat": "the concat",
    "W_O": "the output projection W_O",
    "residual_mha": "the first residual",
    "residual": "both residuals",
    "norm_ffn": "the second norm",
    "ffn": "the feed-forward network",
    "residual_ffn": "the second residual",
    "stack": "the stack of L blocks",
    "norm_final": "the final norm",
    "head": "the LM head",
}
_WITH = {"mha": ("heads", "concat", "W_O"), "residual": ("residual_mha", "residual_ffn")}


def block(*lit: str) -> Picture:
    """Draw the Pre-Norm block inside its model, with the named parts lit and the others pale.

    Args:
        lit: names of parts: embedding, norm_mha, mha (heads, concat and W_O in it), heads, concat,
            W_O, residual_mha, norm_ffn, ffn, residual_ffn, stack, norm_final, head. None: all.

    Raises:
        ValueError: no such part.

    >>> block("W_O")
    The Pre-Norm block inside a language model; lit: the output projection W_O.
    """
    if unknown := [part for part in lit if part not in PARTS]:
        raise ValueError(f"the block has no part {unknown[0]!r}; it has {', '.join(PARTS)}")
    svg = resources.files("transformer_block.figures").joinpath("block.svg").read_text("utf-8")
    svg = re.sub(r"<!--.*?-->|\n\s*", "", svg, flags=re.DOTALL)
    if lit:
        shown = {part for name in lit for part in (name, *_WITH.get(name, ()))}
        svg = svg.replace('class="tb-block"', 'class="tb-block tb-some"')
        for part in shown:
            svg = svg.replace(f'data-part="{part}"', f'data-part="{part}" data-lit=""')
    what = f"lit: {', '.join(PARTS[part] for part in lit)}" if lit else "all of its parts"
    return Picture(svg, f"The Pre-Norm block inside a language model; {what}.")
