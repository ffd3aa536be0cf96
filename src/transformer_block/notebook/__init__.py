"""Rung 7: what only the chapters use, to show, state, play, practise and draw."""

from transformer_block.notebook import figures
from transformer_block.notebook.check import check
from transformer_block.notebook.explore import explore
from transformer_block.notebook.progress import progress
from transformer_block.notebook.quiz import Question, quiz
from transformer_block.notebook.recorded import study
from transformer_block.notebook.show_source import show_source
from transformer_block.notebook.verify import ClaimError, verify

__all__ = [
    "ClaimError",
    "Question",
    "check",
    "explore",
    "figures",
    "progress",
    "quiz",
    "show_source",
    "study",
    "verify",
]
