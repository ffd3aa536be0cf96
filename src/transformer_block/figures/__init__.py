"""Pictures of the chapters: small SVG in the page's own colours, each with a text in its place."""

from transformer_block.figures.activation_plot import activation
from transformer_block.figures.bar_chart import bars
from transformer_block.figures.block_drawing import block
from transformer_block.figures.dependence_map import dependence
from transformer_block.figures.feature_strip import features
from transformer_block.figures.head_strips import heads
from transformer_block.figures.heat_maps import heat_map
from transformer_block.figures.ledger_table import ledger
from transformer_block.figures.line_plot import lines
from transformer_block.figures.live_plot import live_curve
from transformer_block.figures.matplotlib_svg import from_matplotlib
from transformer_block.figures.picture import Gallery, Picture, side_by_side
from transformer_block.figures.reading_lines import reading
from transformer_block.figures.text_table import table
from transformer_block.figures.width_drawing import up_and_down

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
    "reading",
    "side_by_side",
    "table",
    "up_and_down",
]
