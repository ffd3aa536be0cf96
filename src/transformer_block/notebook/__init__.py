"""Rung 7: what only the chapters use, to show, state, play, practise and draw."""

from transformer_block.experiments.recorded import study
from transformer_block.notebook.claims import ClaimError, verify
from transformer_block.notebook.exercises import check
from transformer_block.notebook.progress_line import progress
from transformer_block.notebook.quizzes import Question, quiz
from transformer_block.notebook.sources import show_source, show_study
from transformer_block.notebook.widgets import explore

__all__ = [
    "ClaimError",
    "Question",
    "check",
    "explore",
    "progress",
    "quiz",
    "show_source",
    "show_study",
    "study",
    "verify",
]
