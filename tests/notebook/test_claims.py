import numpy as np
import pytest
import torch

from transformer_block.notebook import ClaimError, verify


@pytest.mark.parametrize("true", [True, torch.tensor(True), torch.ones(3).all(), np.bool_(True)])
def test_a_true_sentence_is_printed_with_a_tick(true, capsys):
    verify("rows sum to one", true)
    assert capsys.readouterr().out == "✓ rows sum to one\n"


@pytest.mark.parametrize("false", [False, torch.tensor(False), np.bool_(False)])
def test_a_false_sentence_is_raised(false, capsys):
    with pytest.raises(ClaimError, match="rows sum to one"):
        verify("rows sum to one", false)
    assert capsys.readouterr().out == ""


def test_it_fails_as_an_assertion_does():
    assert issubclass(ClaimError, AssertionError)


@pytest.mark.parametrize(
    ("vague", "way_out"),
    [
        (1, "int: 1"),
        (0.001, "compare it"),
        (None, "NoneType"),
        ("yes", "str"),
        (torch.tensor(1.0), "torch.float32"),
        (torch.ones(3, 5, dtype=torch.bool), r"\[3, 5\].*\.all\(\)"),
        (torch.ones(1, dtype=torch.bool), r"\[1\]"),
        (np.ones(2) == 1, r"\[2\]"),
    ],
)
def test_what_is_neither_true_nor_false_decides_nothing(vague, way_out):
    with pytest.raises(TypeError, match=way_out):
        verify("so", vague)
