import pytest
import torch

from transformer_block import LanguageModel, MultiHeadAttention, record, toy_config, toy_language
from transformer_block.experiments.output_projection import (
    dependence,
    excess_with,
    fix_W_O,
    shared_directions,
)

SMALL = {"d_model": 12, "n_heads": 3, "d_ff": 20}


def test_the_heads_then_write_their_reports_as_they_are():
    model = fix_W_O(LanguageModel(toy_config(**SMALL)))
    with record(model, ["blocks.1.mha.concat", "blocks.1.mha"]) as run:
        model(torch.tensor([[1, 5, 9, 2]]))
    assert torch.equal(run["blocks.1.mha"], run["blocks.1.mha.concat"])


def test_only_W_O_is_kept_from_learning():
    model = fix_W_O(LanguageModel(toy_config(**SMALL)))
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert frozen == {"blocks.0.mha.W_O.weight", "blocks.1.mha.W_O.weight"}


def test_it_stays_as_it_was_through_a_training():
    language = toy_language()
    excess = excess_with("identity", seed=3, steps=2, language=language)
    assert excess > 0
    assert excess != excess_with("learned", seed=3, steps=2, language=language)


def test_another_width_has_no_identity():
    model = LanguageModel(toy_config(**SMALL))
    model.blocks[1].mha = MultiHeadAttention(12, 3, d_head=7)
    with pytest.raises(ValueError, match=r"h · d_head is 21 and d_model is 12"):
        fix_W_O(model)


def test_another_kind_is_told():
    with pytest.raises(ValueError, match="learned or identity here, not 'none'"):
        excess_with("none", seed=1, steps=1, language=toy_language())


def test_dependence_is_the_size_of_the_derivatives_by_one_head_beside_the_average():
    # rows: one head alone, both alike, neither; the root mean square over all 12 numbers is 1
    J = torch.tensor([[2.0, 2, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]])
    assert torch.allclose(dependence(J, 2), torch.tensor([[2.0, 0], [1, 1], [0, 0]]))
    assert torch.allclose(dependence(5 * J, 2), dependence(J, 2))  # it has no unit


def test_heads_share_all_directions_none_or_half_of_them():
    axes = torch.eye(6)
    apart = torch.stack([axes[:2], axes[2:4]])
    assert torch.allclose(shared_directions(apart), torch.eye(2), atol=1e-6)
    turned = torch.stack([axes[:2], torch.tensor([[1.0, 1], [1, -2]]) @ axes[:2]])
    assert torch.allclose(shared_directions(turned), torch.ones(2, 2), atol=1e-6)
    half = shared_directions(torch.stack([axes[:2], axes[1:3]]))
    assert torch.allclose(half, torch.tensor([[1.0, 0.5], [0.5, 1.0]]), atol=1e-6)


def test_random_directions_share_their_share_of_the_width():
    generator = torch.Generator().manual_seed(4)
    shares = shared_directions(torch.randn(40, 16, 64, generator=generator))
    assert shares[~torch.eye(40, dtype=torch.bool)].mean() == pytest.approx(16 / 64, abs=0.01)
