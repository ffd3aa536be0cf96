"""A quiz for a plain page: each option is a fold, and opening it says why it is right or wrong.

It needs no script, no kernel and no style sheet. Keyboards and screen readers know folds already;
and where a viewer throws styles away, as for notebooks that are not trusted, what is said about an
option stays folded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_BOX = (
    "border:1px solid color-mix(in srgb,currentColor 30%,transparent);border-radius:6px;"
    "margin:0 0 1em;padding:.5em 1em;max-width:46rem"
)
_ASKED = "font-weight:600;margin:0 0 .3em"
_LIST = "list-style:none;margin:0;padding:0"
_OPTION = "cursor:pointer;font-weight:400"
_SAID = "margin:.2em 0 .5em 1.1em;padding:.1em .7em;border-left:4px solid"
_RIGHT, _WRONG = "var(--tb-3,#009e73)", "var(--tb-2,#d55e00)"


@dataclass(frozen=True)
class Question:
    """One question: its options, each with what is said when it is chosen, and which is right."""

    text: str
    options: Sequence[tuple[str, str]]
    right: int

    def __post_init__(self) -> None:
        if not 2 <= len(self.options) <= 8:
            raise ValueError(
                f"a question needs 2 to 8 options; {self.text!r} has {len(self.options)}"
            )
        if not 0 <= self.right < len(self.options):
            raise ValueError(
                f"right must be the place of one of the {len(self.options)} options, counted "
                f"from 0; {self.right} is none of them"
            )


class Quiz:
    """Questions that a page marks by itself."""

    def __init__(self, questions: Sequence[Question]) -> None:
        self.questions = questions

    def _repr_html_(self) -> str:
        asked = "\n".join(_html(number, q) for number, q in enumerate(self.questions, 1))
        return f'<div class="tb-quiz">\n{asked}\n</div>'

    def __repr__(self) -> str:
        lines = []
        for number, question in enumerate(self.questions, 1):
            lines.append(f"{number}. {question.text}")
            lines += [f"   {'abcdefgh'[i]}) {o}" for i, (o, _) in enumerate(question.options)]
        return "\n".join(lines)


def quiz(questions: Sequence[Question]) -> Quiz:
    """Show questions with a choice of answers; opening one says at once why it is right or wrong.

    Args:
        questions: `Question(text, [(option, what to say), ...], right=place of the right one)`.

    Raises:
        ValueError: none given, or the same question twice.

    >>> quiz([Question("1 + 1?", [("2", "As it should."), ("3", "One too many.")], right=0)])
    1. 1 + 1?
       a) 2
       b) 3
    """
    texts = [question.text for question in questions]
    if not texts or len(set(texts)) < len(texts):
        raise ValueError(f"a quiz needs questions, each another; got {texts}")
    return Quiz(questions)


def _html(number: int, question: Question) -> str:
    # a line of its own for each text: without the tags, words must not run together
    options = "\n".join(
        _option(option, said, right=place == question.right)
        for place, (option, said) in enumerate(question.options)
    )
    return (
        f'<div style="{_BOX}">\n<p style="{_ASKED}">{number}. {escape(question.text)}</p>\n'
        f'<ul style="{_LIST}">\n{options}\n</ul>\n</div>'
    )


def _option(option: str, said: str, *, right: bool) -> str:
    verdict, colour = ("Right.", _RIGHT) if right else ("Not so.", _WRONG)
    return (
        f'<li><details><summary style="{_OPTION}">{escape(option)}</summary>\n'
        f'<p style="{_SAID} {colour}"><b>{verdict}</b> {escape(said)}</p></details></li>'
    )
