import pytest
import torch

from transformer_block import LanguageModel, MultiHeadAttention, record, toy_config, toy_language
from transformer_block.experiments.output_projection import excess_with, fix_W_O

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
