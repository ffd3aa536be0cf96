import re

import pytest

from transformer_block import figures
from transformer_block.counting import shape_ledger
from transformer_block.figures.ledger_table import _short
from transformer_block.notebook import explore


def cells(shown):
    rows = shown._repr_html_().partition("<table")[2].split("<tr>")[2:]
    return [re.findall(r"<td>([^<]*)", row) for row in rows]


def test_every_row_of_the_ledger_is_there():
    rows = shape_ledger(n=5, d_model=12, n_heads=3, d_ff=20)
    shown = cells(figures.ledger(n=5, d_model=12, n_heads=3, d_ff=20))
    assert [len(row) for row in shown] == [5] * len(rows)
    for row, (name, shape, parameters, _, _) in zip(rows, shown, strict=True):
        assert name.split(",")[0] in row.name
        assert shape == ("3 × " if row.heads else "") + str(list(row.shape))
        assert int(parameters.replace(",", "") or 0) == row.parameters


def test_the_running_example():
    shown = figures.ledger(n=100, d_model=512, n_heads=8, d_ff=2048)
    assert ["Q", "8 × [100, 64]", "262,144", "52.4", "205"] in cells(shown)
    assert "attention 35 % (scores 3 %), FFN 65 %" in shown._repr_html_()
    assert repr(shown).endswith("of 3.2 million parameters the FFN has 67 %.")


def test_scores_and_ffn_have_bars_of_one_length_at_n_equal_d_ff():
    html = figures.ledger(n=20, d_model=12, n_heads=3, d_ff=20)._repr_html_()
    wide = [float(w) for w in re.findall(r"M[\d.]+ 62h([\d.]+)v14", html)]
    assert len(wide) == 3
    assert wide[1] == wide[2]
    assert sum(wide) == pytest.approx(400, abs=0.2)


def test_heads_that_do_not_divide_are_told_in_the_widget():
    with pytest.raises(ValueError, match="n_heads must divide d_model"):
        figures.ledger(n=5, d_model=12, n_heads=5, d_ff=20)
    assert explore(figures.ledger, d_model=[12, 16], n_heads=[2, 3], d_ff=[20, 24], n=[5, 7])


@pytest.mark.parametrize(("number", "said"), [(0.0512, "0.05"), (12.34, "12.3"), (4294.9, "4,295")])
def test_about_three_digits(number, said):
    assert _short(number) == said
