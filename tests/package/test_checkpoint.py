import json
import pickle
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save as serialise
from safetensors.torch import save_file

from transformer_block.checkpoint import load, save
from transformer_block.config import ModelConfig
from transformer_block.language_model import LanguageModel, standard_block
from transformer_block.modern import ModernConfig, ModernModel
from transformer_block.rotary import Stretch

CONFIG = ModelConfig(vocab_size=17, n_ctx=7, d_model=12, n_heads=3, n_layers=2, d_ff=20)
VARIANTS = [
    {},
    {"norm_place": "post"},
    {"norm": "rms", "activation": "swiglu"},
    {"tie_weights": True, "bias": True},
]


def written(path):
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


@pytest.fixture
def saved(tmp_path):
    save(LanguageModel(CONFIG), tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def rewritten(path, change_tensors=None, **changes):
    """Write the file again with something changed by hand."""
    tensors, metadata = written(path)
    if change_tensors:
        change_tensors(tensors)
    metadata = {key: value for key, value in (metadata | changes).items() if value is not None}
    save_file(tensors, path, metadata=metadata or None)
    return path


@pytest.mark.parametrize("change", VARIANTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_what_is_saved_comes_back_bit_by_bit(change, dtype, tmp_path):
    model = LanguageModel(replace(CONFIG, **change)).to(dtype)
    ids = torch.randint(0, 17, (2, 5))
    with torch.no_grad():
        for parameter in model.parameters():  # also γ and β, which start as 1 and 0
            parameter.add_(torch.randn_like(parameter))
    save(model, str(tmp_path / "m.safetensors"))
    back = load(tmp_path / "m.safetensors")
    assert back.config == model.config
    assert back.state_dict().keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor)
    assert torch.equal(back(ids), model(ids))
    assert all(parameter.requires_grad for parameter in back.parameters())


def test_a_tied_head_is_written_once_and_stays_tied(tmp_path):
    path = tmp_path / "m.safetensors"
    save(LanguageModel(replace(CONFIG, tie_weights=True)), path)
    assert "W_LM.weight" not in written(path)[0]
    back = load(path)
    assert back.W_LM.weight is back.E.weight


def test_loading_draws_nothing_from_the_random_state(saved):
    state = torch.get_rng_state()
    load(saved)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_file_is_safetensors_with_the_config_as_json(saved):
    tensors, metadata = written(saved)
    assert json.loads(metadata["config"]) == asdict(CONFIG)
    assert tensors["P.weight"].shape == (7, 12)


def test_an_interrupted_save_leaves_the_old_file_whole(saved, monkeypatch, caught):
    before = saved.read_bytes()

    write = Path.write_bytes

    def breaks_off(path, content):
        write(path, content[:100])
        raise KeyboardInterrupt

    def proof(save_it):
        with pytest.raises(KeyboardInterrupt):
            save_it(LanguageModel(CONFIG), saved)
        assert saved.read_bytes() == before
        assert list(saved.parent.iterdir()) == [saved]

    monkeypatch.setattr(Path, "write_bytes", breaks_off)
    proof(save)
    caught(proof, lambda model, path: path.write_bytes(serialise(model.state_dict())))


def test_saving_replaces_and_needs_its_folder(saved):
    other = LanguageModel(CONFIG)
    save(other, saved)
    assert torch.equal(load(saved).E.weight, other.E.weight)
    with pytest.raises(FileNotFoundError):
        save(other, saved.parent / "no such folder" / "m.safetensors")


def test_a_new_file_can_be_read_by_others(saved):
    (saved.parent / "plain").touch()
    assert saved.stat().st_mode == (saved.parent / "plain").stat().st_mode


def test_two_dtypes_are_refused(tmp_path):
    model = LanguageModel(CONFIG)
    model.blocks[0].double()
    with pytest.raises(ValueError, match=r"one dtype, .*float32.*float64.*model\.float\(\)"):
        save(model, tmp_path / "m.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no checkpoint at .*none"):
        load(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        load(tmp_path)


class Bomb:
    def __reduce__(self):
        return pytest.fail, ("a pickle was executed",)


@pytest.mark.parametrize("content", [b"", b"not a model", pickle.dumps(Bomb()), None])
def test_what_is_not_safetensors_is_refused_and_never_executed(content, saved):
    saved.write_bytes(saved.read_bytes()[:-9] if content is None else content)
    with pytest.raises(ValueError, match="is not a safetensors file, or is cut short"):
        load(saved)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"format": "pt"}, "of format 'pt' version '1', not 'transformer_block' version '1'"),
        ({"version": "0"}, "version '0', not"),
        ({"format": None, "version": None, "config": None}, "of format None"),
        ({"config": None}, "no config that can be read"),
        ({"config": "{"}, "no config that can be read"),
        ({"config": "[3]"}, "lacks"),
        (
            {"config": json.dumps(asdict(CONFIG) | {"rotary": True})},
            r"unknown fields \['rotary'\] and lacks \[\]; was it written by another version",
        ),
        (
            {"config": json.dumps({k: v for k, v in asdict(CONFIG).items() if k != "d_ff"})},
            r"lacks \['d_ff'\]",
        ),
        ({"config": json.dumps(asdict(CONFIG) | {"n_heads": 5})}, "n_heads must divide d_model"),
        (
            {"config": json.dumps(asdict(CONFIG) | {"n_ctx": 8})},
            r"does not fit its config: P.weight is \[7, 12\], not \[8, 12\]",
        ),
        ({"config": json.dumps(asdict(CONFIG) | {"tie_weights": True})}, "W_LM.weight is unknown"),
        (
            {"config": json.dumps(asdict(CONFIG) | {"n_layers": 3})},
            "blocks.2.ffn.*missing.*and 9 more",
        ),
    ],
)
def test_files_that_do_not_fit_are_refused(changes, rule, saved):
    with pytest.raises(ValueError, match=rule):
        load(rewritten(saved, **changes))


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda t: t.pop("blocks.0.mha.W_Q.weight"), "blocks.0.mha.W_Q.weight is missing"),
        (lambda t: t.update({"_orig_mod.E": torch.ones(3)}), "_orig_mod.E is unknown"),
        (
            lambda t: t.update(
                {"blocks.0.ffn.W_1.weight": t["blocks.0.ffn.W_1.weight"].T.contiguous()}
            ),
            r"W_1.weight is \[12, 20\], not \[20, 12\]",
        ),
        (lambda t: t.clear(), "is missing"),
        (
            lambda t: t.update({"E.weight": t["E.weight"].double()}),
            "one floating-point dtype, .*'torch.float32', 'torch.float64'",
        ),
        (lambda t: t.update({k: v.long() for k, v in t.items()}), "not .'torch.int64'"),
    ],
)
def test_weights_that_do_not_fit_are_refused(change, rule, saved):
    with pytest.raises(ValueError, match=rule):
        load(rewritten(saved, change))


# ---- a modern model

MODERN = ModernConfig(**asdict(CONFIG) | {"n_heads": 6})
STRETCH = Stretch(factor=4.0, low=1.0, high=4.0, n_trained=5)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"norm": "rms", "activation": "swiglu", "positions": "rotary", "n_kv_heads": 2},
        {"positions": "rotary", "stretch": STRETCH, "theta": 50.0, "tie_weights": True},
        {"n_kv_heads": 1, "d_head": 5, "bias": True, "eps": 1e-3},
    ],
)
def test_a_modern_model_comes_back_bit_by_bit(change, tmp_path):
    model = ModernModel(replace(MODERN, **change))
    save(model, tmp_path / "m.safetensors")
    back = load(tmp_path / "m.safetensors")
    assert isinstance(back, ModernModel)
    assert back.config == model.config
    ids = torch.randint(0, 17, (2, 5))
    assert torch.equal(back(ids), model(ids))


def test_the_config_of_a_modern_model_is_whole(tmp_path):
    save(ModernModel(MODERN), tmp_path / "m.safetensors")
    fields = asdict(MODERN)
    del fields["eps"]
    rewritten(tmp_path / "m.safetensors", config=json.dumps(fields | {"window": 3}))
    with pytest.raises(ValueError, match=r"unknown fields \['window'\] and lacks \['eps'\]"):
        load(tmp_path / "m.safetensors")


@pytest.mark.parametrize("stretch", [{"factor": 2.0}, 3])
def test_a_stretch_that_cannot_be_read(stretch, tmp_path):
    save(ModernModel(MODERN), tmp_path / "m.safetensors")
    config = asdict(MODERN) | {"positions": "rotary", "stretch": stretch}
    rewritten(tmp_path / "m.safetensors", config=json.dumps(config))
    with pytest.raises(ValueError, match="holds no config that can be read"):
        load(tmp_path / "m.safetensors")


def test_a_modern_model_takes_no_other_blocks(tmp_path):
    save(ModernModel(MODERN), tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match="builds its blocks by its own config; leave block out"):
        load(tmp_path / "m.safetensors", block=lambda config: standard_block(config))
