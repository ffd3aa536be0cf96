import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_block import LanguageModel, ModelConfig

SIZES = {"vocab_size": 17, "n_ctx": 7, "d_model": 12, "n_heads": 3, "n_layers": 2, "d_ff": 20}


def test_it_is_frozen_and_named():
    config = ModelConfig(**SIZES)
    assert config.d_head == 4
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.d_model = 24
    with pytest.raises(TypeError):
        ModelConfig(17, 7, 12, 3, 2, 20)
    assert hash(config) == hash(ModelConfig(**SIZES))


def test_what_is_not_said_is_the_usual():
    said = dataclasses.asdict(ModelConfig(**SIZES))
    unsaid = {name: value for name, value in said.items() if name not in SIZES}
    assert unsaid == {
        "norm": "layer", "norm_place": "pre", "activation": "gelu", "tie_weights": False,
        "bias": False,
    }  # fmt: skip


@pytest.mark.usefixtures("as_a_reader")
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"n_heads": 5}, "n_heads must divide d_model; 12 / 5 leaves 2; try 4 or 6"),
        ({"vocab_size": 0}, "vocab_size must be a whole number of at least 1, not 0"),
        ({"n_layers": 1.5}, "n_layers must be a whole number of at least 1, not 1.5"),
        ({"norm": "batch"}, "norm must be one of layer, rms"),
        ({"norm_place": "both"}, "norm_place must be pre or post, not 'both'"),
        ({"activation": "tanh"}, "activation must be one of relu"),
    ],
)
def test_what_does_not_fit_is_told_clearly(change, says):
    with pytest.raises(ValueError, match=says):
        ModelConfig(**SIZES | change)


@given(st.integers(1, 40), st.integers(1, 12))
def test_a_config_that_is_accepted_makes_a_model(d_model, n_heads):
    sizes = SIZES | {"d_model": d_model, "n_heads": n_heads}
    if d_model % n_heads:
        with pytest.raises(ValueError, match=r"leaves \d+; try"):
            ModelConfig(**sizes)
    else:
        assert LanguageModel(ModelConfig(**sizes)).blocks[0].mha.d_head * n_heads == d_model
