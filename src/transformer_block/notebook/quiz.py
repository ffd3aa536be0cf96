"""A quiz that marks itself in a plain page: HTML and CSS, no script and no kernel."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

# `input:not(:checked) + label + div > p` hides what is said about an option until it is chosen;
# a CSS counter adds up the right ones.
_STYLE = """
.tb-quiz{counter-reset:tb-right;max-width:46rem}
.tb-quiz fieldset{border:1px solid;border-color:color-mix(in srgb,currentColor 30%,transparent);
border-radius:6px;margin:0 0 1em;padding:.4em 1em .7em;min-width:0}
.tb-quiz legend{float:none;width:auto;font-size:1em;font-weight:600;margin:0;padding:0 .4em}
.tb-quiz .tb-option{margin:.35em 0}
.tb-quiz input{accent-color:var(--tb-1,#0072b2);margin:0 .5em 0 0}
.tb-quiz label{cursor:pointer;display:inline;margin:0}
.tb-quiz p{margin:.2em 0 .5em 1.5em;padding:.1em .7em;border-left:4px solid var(--tb-2,#d55e00)}
.tb-quiz input.tb-right:checked{counter-increment:tb-right}
.tb-quiz input.tb-right+label+div>p{border-color:var(--tb-3,#009e73)}
.tb-quiz input:not(:checked)+label+div>p{display:none}
.tb-quiz .tb-score::before{content:"Right so far: " counter(tb-right)}
""".replace("\n", "")


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
        asked = "".join(_html(number, q) for number, q in enumerate(self.questions, 1))
        score = f'<div class="tb-score" role="status"> of {len(self.questions)}</div>'
        return f'<div class="tb-quiz"><style>{_STYLE}</style>{asked}{score}</div>'

    def __repr__(self) -> str:
        lines = []
        for number, question in enumerate(self.questions, 1):
            lines.append(f"{number}. {question.text}")
            lines += [f"   {'abcdefgh'[i]}) {o}" for i, (o, _) in enumerate(question.options)]
        return "\n".join(lines)


def quiz(questions: Sequence[Question]) -> Quiz:
    """Show questions with a choice of answers; choosing one says at once why it is right or wrong.

    Args:
        questions: `Question(text, [(option, what to say), ...], right=place of the right one)`.

    Raises:
        ValueError: none given, or the same question twice (their buttons would be tied together).

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
    # derived from the text: the same in every run, and different from every other question's
    name = "tb-q-" + hashlib.sha256(question.text.encode()).hexdigest()[:10]
    options = []
    for place, (option, said) in enumerate(question.options):
        right = place == question.right
        mark = ' class="tb-right"' if right else ""
        options.append(
            f'<div class="tb-option"><input type="radio" name="{name}" id="{name}-{place}"'
            f"{mark}/>"
            f'<label for="{name}-{place}">{escape(option)}</label>'
            f'<div aria-live="polite"><p><b>{"Right." if right else "Not so."}</b> '
            f"{escape(said)}</p></div></div>"
        )
    legend = f"<legend>{number}. {escape(question.text)}</legend>"
    return f"<fieldset>{legend}{''.join(options)}</fieldset>"
