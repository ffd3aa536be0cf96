import pytest
import torch

from transformer_block import causal_mask
from transformer_block.notebook import joins
from transformer_block.notebook.depth import deep_model, streams


@pytest.mark.parametrize("way", joins.WAYS)
@pytest.mark.parametrize("n_layers", [1, 3])
def test_the_blocks_run_and_their_counts_are_those_of_the_modules(way, n_layers):
    blocks = joins.joined(way, n_layers, d_model=12, n_heads=3)
    X, mask = torch.randn(2, 5, 12), causal_mask(5)
    for block in blocks:
        X = block(X, mask)
    assert X.shape == (2, 5, joins.width(way, n_layers, 12))
    matrices = [p for p in blocks.parameters() if p.ndim == 2]
    assert sum(p.numel() for p in matrices) == joins.weights(way, n_layers, 12)


@pytest.mark.parametrize("d", [4, 12])
@pytest.mark.parametrize("n_layers", [1, 2, 7])
def test_the_counts_follow_their_formulas(n_layers, d):
    L = n_layers
    assert [joins.width(way, L, d) for way in joins.WAYS] == [d, (2 * L + 1) * d, d]
    weights = [joins.weights(way, L, d) for way in joins.WAYS]
    assert weights == [12 * L * d**2, (7 * L**2 + 9 * L) * d**2, 16 * L * d**2]


def test_appending_overwrites_nothing():
    block = joins.AppendBlock(20, d_model=12, n_heads=3)
    X = torch.randn(2, 5, 20)
    out = block(X, causal_mask(5))
    assert out.shape == (2, 5, 44)
    assert torch.equal(out[..., :20], X)


def test_a_projection_that_begins_as_a_sum_is_one(double):
    X = torch.randn(4, 5, 12)
    added = deep_model("pre-norm", 2, seed=1, d_model=12, n_heads=3)
    as_sum = joins.projected(deep_model("pre-norm", 2, seed=1, d_model=12, n_heads=3), as_sum=True)
    torch.testing.assert_close(streams(as_sum, X)[-1], streams(added, X)[-1])
    drawn = joins.projected(deep_model("pre-norm", 2, seed=1, d_model=12, n_heads=3))
    assert not torch.allclose(streams(drawn, X)[-1], streams(added, X)[-1])


def test_an_unknown_way_is_refused():
    with pytest.raises(ValueError, match="add, append, concat and project; not 'glue'"):
        joins.joined("glue", 1, 12, 3)
