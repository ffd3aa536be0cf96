import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transformer_block.notebook import check

torch.manual_seed(3)
CASES = [(torch.randn(2, 5, 4), torch.randn(2, 3, 4)), (torch.randn(1, 2, 7), torch.randn(1, 2, 7))]


def right(Q, K):
    return (Q @ K.mT / Q.shape[-1] ** 0.5).softmax(-1)


def unscaled(Q, K):
    return (Q @ K.mT).softmax(-1)


def wrong_axis(Q, K):
    return (Q @ K.mT / Q.shape[-1] ** 0.5).softmax(-2)


MISTAKES = {"the scores are not scaled": unscaled, "softmax runs over the queries": wrong_axis}


def said(capsys, mine, reference=right, cases=CASES, mistakes=MISTAKES):
    assert check(mine, reference, cases, mistakes) is None
    return capsys.readouterr().out


def raises(error):
    def mine(*_):
        raise error

    return mine


def dots(Q, K): ...


def documented(Q, K):
    """Say what is asked."""
    # and how


def passed(Q, K):
    """Say what is asked."""
    pass  # noqa: PIE790 - as a reader may leave it


@pytest.mark.parametrize(
    "stub",
    [raises(NotImplementedError()), dots, documented, passed, lambda Q, K: None, lambda Q, K: ...],
    ids=["raise", "dots", "documented", "pass", "None", "returned dots"],
)
def test_an_untouched_stub_is_no_mistake(stub, capsys):
    assert said(capsys, stub).startswith("… nothing yet")


def unreturned(Q, K):
    A = right(Q, K)
    A.sum()


def printed(Q, K):
    print("A is", right(Q, K).shape)


@pytest.mark.parametrize("mine", [unreturned, printed])
def test_a_right_answer_without_return_is_told_so(mine, capsys):
    told = said(capsys, mine).splitlines()[-1]
    assert told == "✗ Your function returns nothing: is a `return` missing?"


def test_a_right_answer_is_praised(capsys):
    assert said(capsys, right) == "✓ Right: your answer agrees with the reference on all 2 cases.\n"


def test_another_order_of_summation_is_right_too(capsys):
    other = lambda Q, K: torch.einsum("bqd,bkd->bqk", Q / Q.shape[-1] ** 0.5, K).softmax(-1)  # noqa: E731 - short
    assert said(capsys, other).startswith("✓")


@pytest.mark.parametrize(("sentence", "mistake"), MISTAKES.items())
def test_each_mistake_is_named(sentence, mistake, capsys):
    assert said(capsys, mistake) == f"✗ Not yet: it looks as if {sentence}.\n"


@pytest.mark.parametrize(
    ("mine", "words"),
    [
        (lambda Q, K: right(Q, K)[:, :1], r"shape [1, 1, 3], expected [2, 5, 3]"),
        (lambda Q, K: right(Q, K).double(), "is torch.float64, expected torch.float32"),
        (lambda Q, K: right(Q, K) + 1, "30 of 30 values differ; the first, at [0, 0, 0]"),
        (lambda Q, K: [1.0], "is a list, expected a Tensor"),
        (lambda Q, K: Q @ K, "stops with RuntimeError"),
        (lambda Q: Q, "stops with TypeError"),
        (raises(ValueError("no")), "stops with ValueError: no\n  This was case 1 of 2: tensor"),
        (
            lambda Q, K: right(Q, K) if len(Q) == 2 else None,
            "For case 2 of 2 your function returns nothing: is a `return` missing there?",
        ),
    ],
)
def test_other_mistakes_are_described(mine, words, capsys):
    out = said(capsys, mine)
    assert out.startswith("✗")
    expected = words.replace("[1, 1, 3]", "[2, 1, 3]")
    assert expected in out


@pytest.mark.parametrize(
    ("mine", "reference", "words"),
    [
        (12, 12.0, "✓"),
        (12, 13, "Your answer is 12, expected 13."),
        (0.1 + 0.2, 0.3, "✓"),
        ("a", "b", "Your answer is 'a', expected 'b'."),
        ((1, 2), (1, 3), "Part 1: Your answer is 2, expected 3."),
        ((1,), (1, 3), "Your answer has 1 parts, expected 2."),
        ([1, 2], (1, 2), "✓"),
        (True, False, "Your answer is True, expected False."),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), "1 of 2 values differ; the first, at [1]"),
        (torch.tensor(1.5), torch.tensor(2.5), "as a number: yours is 1.5, expected 2.5"),
        (float("nan"), 1.0, "Your answer is nan"),
        ({"b": 0.1 + 0.2, "a": [1]}, {"a": [1], "b": 0.3}, "✓"),
        ({"a": [1, 2]}, {"a": [1, 3]}, "At 'a': Part 1: Your answer is 2, expected 3."),
        ({"a": 1}, {"a": 1, "b": 2}, "Your answer is {'a': 1}, expected {'a': 1, 'b': 2}."),
    ],
)
def test_answers_of_many_kinds(mine, reference, words, capsys):
    out = said(capsys, lambda: mine, lambda: reference, [()], None)
    assert words in out


def test_an_argument_alone_is_a_case(capsys):
    assert "the one case" in said(capsys, abs, abs, [-3], None)


def counted(words, counts, layer, computed):
    return len(words) + sum(counts["n"]) + layer.weight.sum().item() + computed.sum().item()


def emptied(words, counts, layer, computed):
    """Answer right and leave nothing of the arguments."""
    answer = counted(words, counts, layer, computed)
    words.clear()
    counts["n"].clear()
    layer.weight.data.zero_()
    computed.data.zero_()
    return answer


def test_an_answer_that_changes_its_arguments_spoils_nothing(capsys):
    layer = torch.nn.Linear(3, 2)
    one = (["a", "b"], {"n": [1, 2]}, layer, layer.weight * 2)
    before = counted(*one)
    for mine, reference in ((emptied, counted), (counted, emptied), (emptied, emptied)):
        told = said(capsys, mine, reference, [one, one], {"a part is missing": lambda *_: 0.0})
        assert told.startswith("✓ Right"), told
    assert counted(*one) == before
    assert one[3].requires_grad


def test_the_author_hears_of_cases_that_show_nothing():
    with pytest.raises(ValueError, match="at least one case"):
        check(right, right, [])
    with pytest.raises(ValueError, match="do not show the mistake 'no scale'"):
        check(right, right, [(torch.randn(1, 2, 1), torch.randn(1, 3, 1))], {"no scale": unscaled})


@given(
    st.one_of(
        st.none(), st.integers(), st.text(), st.floats(), st.lists(st.integers()), st.binary()
    )
)
def test_no_answer_makes_it_raise(answer):
    check(lambda *_: answer, right, CASES, MISTAKES)
    check(lambda *_: answer, lambda *_: 3, [()])
