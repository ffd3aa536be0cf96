import math

import pytest
import torch
from torch import nn

from transformer_block import LayerNorm
from transformer_block.notebook import norms_out as module
from transformer_block.notebook.norms_out import first_losses, norms_out


@pytest.mark.parametrize(
    ("removed", "left"),
    [(None, 7), ("norms in blocks", 1), ("final norm", 6), ("all norms", 0)],
)
def test_the_named_norms_are_gone_and_the_weights_are_the_same(removed, left):
    model = norms_out(removed, 3, seed=31)
    assert sum(isinstance(part, LayerNorm) for part in model.modules()) == left
    whole = norms_out(None, 3, seed=31)
    assert torch.equal(model.blocks[2].ffn.W_2.weight, whole.blocks[2].ffn.W_2.weight)


def test_only_the_matrices_of_the_blocks_are_made_smaller():
    usual, small = norms_out(None, 2, seed=31), norms_out(None, 2, seed=31, weights=0.3)
    theirs = dict(usual.named_parameters())
    for name, parameter in small.named_parameters():
        factor = 0.3 if name.startswith("blocks.") and parameter.ndim == 2 else 1.0
        assert torch.allclose(parameter, factor * theirs[name]), name


def test_the_losses_begin_near_a_uniform_guess_and_come_out_again():
    state = torch.get_rng_state()
    losses = first_losses("all norms", 1, seed=31, steps=4)
    assert torch.equal(state, torch.get_rng_state())
    assert len(losses) == 4
    assert abs(losses[0] - math.log(norms_out(None, 1, seed=31).config.vocab_size)) < 0.2
    assert losses == first_losses("all norms", 1, seed=31, steps=4)


def test_a_training_that_breaks_ends_the_list(monkeypatch):
    class Breaks(nn.Module):
        calls = 0

        def forward(self, X):
            self.calls += 1
            return X if self.calls < 3 else X * math.nan

    def planted(*args, **kwargs):
        model = norms_out(*args, **kwargs)
        model.norm_final = Breaks()
        return model

    monkeypatch.setattr(module, "norms_out", planted)
    assert len(first_losses(None, 1, seed=31, steps=5)) == 2


def test_an_unknown_part_is_refused_not_swallowed():
    with pytest.raises(ValueError, match="the parts that can go"):
        first_losses("norm", 1, seed=31, steps=1)
