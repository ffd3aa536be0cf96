"""Pictures of the chapters: small SVG in the page's own colours, each with a text in its place."""

from transformer_block.notebook.figures.activation import activation
from transformer_block.notebook.figures.bars import bars
from transformer_block.notebook.figures.block import block
from transformer_block.notebook.figures.dependence import dependence
from transformer_block.notebook.figures.features import features
from transformer_block.notebook.figures.heads import heads
from transformer_block.notebook.figures.heat_map import heat_map
from transformer_block.notebook.figures.ledger import ledger
from transformer_block.notebook.figures.lines import lines
from transformer_block.notebook.figures.live_curve import live_curve
from transformer_block.notebook.figures.picture import Gallery, Picture, side_by_side
from transformer_block.notebook.figures.plot import from_matplotlib
from transformer_block.notebook.figures.table import table
from transformer_block.notebook.figures.up_and_down import up_and_down

__all__ = [
    "Gallery",
    "Picture",
    "activation",
    "bars",
    "block",
    "dependence",
    "features",
    "from_matplotlib",
    "heads",
    "heat_map",
    "ledger",
    "lines",
    "live_curve",
    "side_by_side",
    "table",
    "up_and_down",
]
