"""Languages whose every probability is known, so that a model can be judged exactly."""

from transformer_block.language.grammar import toy_language
from transformer_block.language.known import (
    BOS,
    PAD,
    Batch,
    Evaluation,
    Family,
    FamilyScore,
    Sentence,
    ToyLanguage,
    Trie,
    is_chinese,
    join,
)
from transformer_block.language.repeats import RepeatLanguage, RepeatScore

__all__ = [
    "BOS",
    "PAD",
    "Batch",
    "Evaluation",
    "Family",
    "FamilyScore",
    "RepeatLanguage",
    "RepeatScore",
    "Sentence",
    "ToyLanguage",
    "Trie",
    "is_chinese",
    "join",
    "toy_language",
]
