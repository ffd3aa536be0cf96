import json

import pytest
import torch

from transformer_block.notebook import verify
from transformer_block.notebook.measurements import FILE


@pytest.fixture
def lines(tmp_path, monkeypatch):
    file = tmp_path / "measured"
    monkeypatch.setenv(FILE, str(file))

    def read():
        written = file.read_text("utf-8").splitlines() if file.exists() else []
        return [json.loads(line)["measured"] for line in written]

    return read


def test_both_sides_of_each_comparison_are_written_down(lines):
    shares, T = [0.96, 1.075], torch.tensor([0.5, 0.25])
    verify("one", min(shares) > 0.85)
    verify("a chain, a tensor, two", 0.1 < T.requires_grad_().max() < 1 and len(shares) == 2)
    assert lines() == [["0.96 > 0.85"], ["0.1 < 0.5 < 1", "2 = 2"]]


def test_what_rounding_leaves_is_no_number(lines):
    left = [3e-31, -2e-16, 0.5]
    verify("one", left[0] < 1e-20)
    verify("all, and a number that is 0", all(x < 1 for x in left) and 0.0 < 1e-20)
    assert lines() == [["≈ 0 < 1e-20"], ["≈ 0 … 0.5 < 1", "0 < 1e-20"]]


def test_a_loop_becomes_a_range(lines):
    shares = [0.96, 1.075]
    verify("all", all(0.85 < share < 1.15 for share in shares))
    verify("two loops", all(a <= b + 1 for a in shares for b in shares))
    assert lines() == [["0.85 < 0.96 … 1.07 < 1.15"], ["0.96 … 1.07 ≤ 1.96 … 2.08"]]


def test_what_has_no_numbers_is_left_out(lines):
    words, once = ["a"], iter([1, 2])
    verify("words", words == ["a"])
    verify("no comparison", torch.equal(torch.ones(2), torch.ones(2)))
    verify("cannot be computed again", next(once) == 1 and isinstance(words, list))
    assert lines()[:2] == [[], []]


def test_nothing_is_written_for_a_reader_or_for_a_false_sentence(lines, monkeypatch, capsys):
    with pytest.raises(AssertionError):
        verify("no", 1 > 2)
    monkeypatch.delenv(FILE)
    verify("yes", 2 > 1)
    assert lines() == []
