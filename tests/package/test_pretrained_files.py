"""Files of published weights that are odd or wrong, written by hand."""

import json
import pickle
import sys

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from transformer_block import pretrained
from transformer_block.config import ModelConfig
from transformer_block.counting import count_parameters
from transformer_block.language_model import LanguageModel
from transformer_block.modern import ModernConfig, ModernModel
from transformer_block.rotary import Stretch

SIZES = {"vocab_size": 17, "n_ctx": 9, "d_model": 12, "n_heads": 6, "n_layers": 2, "d_ff": 20}
GPT2 = ModernConfig(**SIZES, bias=True, activation="gelu_tanh", tie_weights=True)
LLAMA = ModernConfig(
    **SIZES, norm="rms", activation="swiglu", positions="rotary", n_kv_heads=2, d_head=4
)


def ids():
    return torch.randint(0, 17, (2, 5), generator=torch.Generator().manual_seed(4))


@pytest.fixture(params=[GPT2, LLAMA], ids=["gpt2", "llama"])
def saved(request, tmp_path):
    """Return a model, with norms that are not 1 and 0, and the folder it is saved in."""
    return make(request.param, tmp_path)


@pytest.fixture
def gpt2(tmp_path):
    return make(GPT2, tmp_path)


@pytest.fixture
def llama(tmp_path):
    return make(LLAMA, tmp_path)


def make(config, folder):
    model = ModernModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    pretrained.save(model, folder)
    return model, folder


def change_tensors(folder, change):
    path = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    changed = change(tensors)  # new tensors, or a change of these
    save_file(changed if isinstance(changed, dict) else tensors, path)


def change_config(folder, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | fields), encoding="utf-8")


# ---- what comes back


def test_what_is_saved_comes_back_bit_by_bit(saved):
    model, folder = saved
    back = pretrained.load(str(folder))
    assert back.config == model.config
    assert back.state_dict().keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor)
        assert back.get_parameter(name).is_contiguous()
    assert torch.equal(back(ids()), model(ids()))
    assert all(parameter.requires_grad for parameter in back.parameters())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_the_dtype_is_the_files_unless_another_is_asked_for(dtype, saved, tmp_path):
    model, folder = saved
    pretrained.save(model.to(dtype), folder)
    assert pretrained.load(folder).E.weight.dtype == dtype
    back = pretrained.load(folder, dtype=torch.float32)
    assert {parameter.dtype for parameter in back.parameters()} == {torch.float32}
    assert torch.equal(back.E.weight, model.E.weight.float())


def test_loading_and_saving_again_writes_the_same_bytes(saved, tmp_path):
    _, folder = saved
    pretrained.save(pretrained.load(folder), tmp_path / "again")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()


def test_a_model_may_be_saved_where_it_came_from(saved):
    _, folder = saved
    back = pretrained.load(folder)  # its memory is the file's
    logits = back(ids())
    with torch.no_grad():
        back.E.weight.mul_(2)
    pretrained.save(back, folder)
    assert torch.equal(pretrained.load(folder)(ids()), back(ids()))
    assert not torch.equal(back(ids()), logits)


def test_training_a_loaded_model_leaves_its_file_alone(saved):
    _, folder = saved
    before = (folder / "model.safetensors").read_bytes()
    back = pretrained.load(folder)
    logits = back(ids())
    logits.sum().backward()
    torch.optim.SGD(back.parameters(), lr=1.0).step()
    assert not torch.equal(back(ids()), logits)
    assert (folder / "model.safetensors").read_bytes() == before


def test_several_files_and_their_index(saved):
    model, folder = saved
    pretrained.save(model, folder, max_bytes=3000)
    assert not (folder / "model.safetensors").exists()
    index = json.loads((folder / "model.safetensors.index.json").read_text("utf-8"))
    files = sorted(path.name for path in folder.glob("*.safetensors"))
    assert files == sorted(set(index["weight_map"].values()))
    assert len(files) > 3
    size = sum(p.nbytes for p in model.parameters())
    assert index["metadata"]["total_size"] == size
    for file in files:
        held = [tensor.nbytes for tensor in load_file(folder / file).values()]
        assert sum(held) <= 3000 or len(held) == 1
    assert torch.equal(pretrained.load(folder)(ids()), model(ids()))
    pretrained.save(model, folder, max_bytes=5000)  # fewer files: none of the old is left
    left = sorted(path.name for path in folder.glob("*.safetensors"))
    assert len(left) < len(files)
    assert not set(left) & set(files)
    pretrained.save(model, folder)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert torch.equal(pretrained.load(folder)(ids()), model(ids()))


def test_a_crash_while_saving_leaves_the_old_file_whole(saved, monkeypatch):
    model, folder = saved
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def breaks_off(tensors, path, metadata):
        path.write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr("transformer_block.pretrained.weights.save_file", breaks_off)
    with pytest.raises(OSError, match="no space left"):
        pretrained.save(model, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_loading_draws_nothing_from_the_random_state(saved):
    state = torch.get_rng_state()
    pretrained.load(saved[1])
    assert torch.equal(torch.get_rng_state(), state)


def test_names_come_with_the_prefix_or_without(saved):
    model, folder = saved
    prefix = "transformer." if model.config.bias else "model."
    assert any(name.startswith(prefix) for name in load_file(folder / "model.safetensors"))
    change_tensors(folder, lambda t: {name.removeprefix(prefix): t[name] for name in t})
    assert torch.equal(pretrained.load(folder)(ids()), model(ids()))
    change_tensors(
        folder, lambda t: t | {prefix + name: tensor.clone() for name, tensor in t.items()}
    )
    with pytest.raises(ValueError, match=r"holds .* and .*, which is one"):
        pretrained.load(folder)


def test_tensors_that_are_only_computed_are_left_out(saved):
    model, folder = saved
    change_tensors(
        folder,
        lambda t: (
            t
            | (
                {
                    "h.0.attn.bias": torch.ones(1, 1, 9, 9).tril().bool(),
                    "transformer.h.1.attn.masked_bias": torch.tensor(-1e4),
                }
                if model.config.bias
                else {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)}
            )
        ),
    )
    assert torch.equal(pretrained.load(folder)(ids()), model(ids()))


def test_a_tied_head_may_be_written_if_it_is_the_embedding(gpt2):
    model, folder = gpt2
    E = "transformer.wte.weight"
    change_tensors(folder, lambda t: t | {"lm_head.weight": t[E].clone()})
    back = pretrained.load(folder)
    assert back.W_LM.weight is back.E.weight
    assert torch.equal(back(ids()), model(ids()))
    change_tensors(folder, lambda t: t | {"lm_head.weight": t[E] + 1})
    with pytest.raises(
        ValueError, match=r"lm_head.weight is transformer.wte.weight, but they diff"
    ):
        pretrained.load(folder)
    change_config(folder, tie_word_embeddings=False)
    back = pretrained.load(folder)
    assert torch.equal(back.W_LM.weight, back.E.weight + 1)
    change_tensors(folder, lambda t: {E: t[E], "lm_head.weight": t["lm_head.weight"][:5]})
    change_config(folder, tie_word_embeddings=True)
    with pytest.raises(ValueError, match="but they differ"):
        pretrained.load(folder)


def test_what_is_no_number_comes_back_as_it_is(gpt2):
    _, folder = gpt2
    E = "transformer.wte.weight"
    nan = torch.full((17, 12), torch.nan)
    change_tensors(folder, lambda t: t | {E: nan, "lm_head.weight": nan.clone()})
    assert pretrained.load(folder).E.weight.isnan().all()


# ---- weights that do not fit


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (
            lambda t: t.pop("transformer.h.0.attn.c_attn.weight"),
            "h.0.attn.c_attn.weight is missing",
        ),
        (lambda t: t.update(score=torch.ones(3)), "score is unknown"),
        (
            lambda t: t.update(
                {"transformer.h.1.mlp.c_fc.weight": torch.ones(20, 12)},
            ),
            r"h.1.mlp.c_fc.weight is \[20, 12\], not \[12, 20\]; .* may be transposed",
        ),
        (
            lambda t: t.update({"transformer.wpe.weight": torch.ones(8, 12)}),
            r"wpe.weight is \[8, 12\], not \[9, 12\]$",
        ),
        (
            lambda t: t.update({"transformer.ln_f.bias": torch.ones(12).double()}),
            r"more than one dtype: .* is F32, transformer.ln_f.bias is F64; .*dtype=torch.float32",
        ),
        (
            lambda t: t.update({"transformer.ln_f.bias": torch.ones(12).int()}),
            "transformer.ln_f.bias in .* is stored as I32, but weights are read as F64, F32",
        ),
        (lambda t: t.pop("transformer.wte.weight"), "wte.weight is missing"),
    ],
)
def test_weights_that_do_not_fit_name_the_tensor(change, rule, gpt2):
    _, folder = gpt2
    change_tensors(folder, change)
    with pytest.raises(ValueError, match=rule):
        pretrained.load(folder)


def test_two_dtypes_are_read_as_the_one_that_is_asked_for(gpt2):
    model, folder = gpt2
    change_tensors(
        folder,
        lambda t: t | {"transformer.ln_f.bias": t["transformer.ln_f.bias"].double()},
    )
    assert torch.equal(pretrained.load(folder, dtype=torch.float32)(ids()), model(ids()))
    with pytest.raises(ValueError, match=r"a model's dtype is one of .*, not torch.int64"):
        pretrained.load(folder, dtype=torch.int64)


def test_another_size_in_the_config_names_the_tensors(llama):
    _, folder = llama
    change_config(folder, num_hidden_layers=3)
    with pytest.raises(ValueError, match=r"layers.2.* is missing; .*; and 6 more"):
        pretrained.load(folder)
    change_config(folder, num_hidden_layers=2, num_key_value_heads=3)
    with pytest.raises(ValueError, match=r"k_proj.weight is \[8, 12\], not \[12, 12\]"):
        pretrained.load(folder)
    change_config(folder, num_key_value_heads=2, tie_word_embeddings=True)
    with pytest.raises(ValueError, match="but they differ"):
        pretrained.load(folder)


# ---- files that cannot be read


class Bomb:
    def __reduce__(self):
        return pytest.fail, ("a pickle was executed",)


@pytest.mark.parametrize("content", [b"", b"not weights", pickle.dumps(Bomb()), None])
def test_what_is_not_safetensors_is_refused_and_never_executed(content, gpt2):
    path = gpt2[1] / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-9] if content is None else content)
    with pytest.raises(ValueError, match="is not a safetensors file, or is cut short"):
        pretrained.load(gpt2[1])


def test_a_pickle_alone_is_not_read_but_can_be_converted(gpt2, monkeypatch):
    model, folder = gpt2
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"no model.safetensors in .*, nor .*index.json$"):
        pretrained.load(folder)
    torch.save(tensors, folder / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match="can run any code when it is read") as told:
        pretrained.load(folder)
    lines = str(told.value).partition("To convert one: ")[2]
    import safetensors.torch  # the names that the way out uses

    monkeypatch.chdir(folder)
    exec(lines, {"torch": torch, "safetensors": safetensors})  # it says what works
    assert torch.equal(pretrained.load(folder)(ids()), model(ids()))


@pytest.mark.parametrize(
    ("spoil", "kind", "rule"),
    [
        (lambda f, i: f.unlink(), FileNotFoundError, "index.json names model-00001-of-"),
        (lambda f, i: i.write_text("{"), ValueError, "no weight_map that can be read"),
        (lambda f, i: i.write_text("[]"), ValueError, "no weight_map that can be read"),
        (lambda f, i: i.write_text('{"weight_map": {"a": 3}}'), ValueError, "no weight_map"),
        (
            lambda f, i: i.write_text('{"weight_map": {"a": "../a.safetensors"}}'),
            ValueError,
            "files that lie beside it",
        ),
        (
            lambda f, i: i.write_text(i.read_text().replace("transformer.wte", "transformer.wxe")),
            ValueError,
            "index.json and .* do not agree on transformer.wte.weight, transformer.wxe.weight",
        ),
    ],
)
def test_an_index_that_does_not_fit(spoil, kind, rule, gpt2):
    model, folder = gpt2
    pretrained.save(model, folder, max_bytes=3000)
    first = sorted(folder.glob("*.safetensors"))[0]
    spoil(first, folder / "model.safetensors.index.json")
    with pytest.raises(kind, match=rule):
        pretrained.load(folder)


def test_a_folder_without_a_config(gpt2):
    (gpt2[1] / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"there is no config.json in"):
        pretrained.load(gpt2[1])
    for text in ("{", "[3]"):
        (gpt2[1] / "config.json").write_text(text)
        with pytest.raises(ValueError, match=r"is not JSON|must hold the fields of a config"):
            pretrained.load(gpt2[1])


# ---- by name


def test_a_name_is_fetched_only_what_is_needed(gpt2, monkeypatch):
    import huggingface_hub

    asked = []

    def fetch(name, *, revision, allow_patterns):
        asked.append((name, revision, allow_patterns))
        return str(gpt2[1])

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    monkeypatch.chdir(gpt2[1])
    model = pretrained.load("an-owner/a.model", revision="v2")
    assert torch.equal(model(ids()), gpt2[0](ids()))
    assert pretrained.read_config("a_model") == GPT2
    (_, _, files), (name, revision, few) = asked
    assert asked[0][:2] == ("an-owner/a.model", "v2")
    assert files == [
        "config.json",
        "model.safetensors",
        "model-*.safetensors",
        "model.safetensors.index.json",
    ]
    assert (name, revision, few) == ("a_model", None, ["config.json"])


def test_a_folder_that_exists_wins_over_a_name(gpt2, monkeypatch):
    monkeypatch.chdir(gpt2[1].parent)
    assert pretrained.load(gpt2[1].name).config == GPT2
    with pytest.raises(ValueError, match="is a folder, which has no revision 'v2'"):
        pretrained.load(gpt2[1].name, revision="v2")


def test_without_network_the_way_out_is_a_folder(monkeypatch):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(FileNotFoundError, match=r"no model of that name .* give their folder \("):
        pretrained.load("an-owner/that-nobody-has")


@pytest.mark.parametrize("name", ["no/such/folder", "/nowhere", "a model"])
def test_what_is_neither_folder_nor_name(name):
    with pytest.raises(FileNotFoundError, match="it is no name either; a name is an owner and"):
        pretrained.load(name)


@pytest.mark.parametrize(
    ("package", "call"),
    [
        ("huggingface_hub", lambda: pretrained.load("gpt2")),
        ("tokenizers", lambda: pretrained.load_tokenizer(".")),
    ],
)
def test_a_package_that_is_lacking_is_named(package, call, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError, match=f"pip install {package}"):
        call()


# ---- configs

THEIR_GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
}
# As they are published: with much that changes nothing.
GPT2_SMALL = THEIR_GPT2 | {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1,
    "bos_token_id": 50256,
    "embd_pdrop": 0.1,
    "eos_token_id": 50256,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "n_ctx": 1024,
    "resid_pdrop": 0.1,
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
}
LLAMA_2_7B = {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.31.0.dev0",
    "use_cache": True,
    "vocab_size": 32000,
}
LLAMA_3_1_8B = LLAMA_2_7B | {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "eos_token_id": [128001, 128008, 128009],
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "num_key_value_heads": 8,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "vocab_size": 128256,
}
MISTRAL_7B = {
    key: value for key, value in LLAMA_2_7B.items() if key not in ("pretraining_tp", "rope_scaling")
} | {
    "model_type": "mistral",
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_key_value_heads": 8,
    "rope_theta": 1000000.0,
    "sliding_window": None,
}


@pytest.mark.parametrize(
    ("published", "parameters"),
    [
        (GPT2_SMALL, 124_439_808),
        (GPT2_SMALL | {"n_embd": 1024, "n_layer": 24, "n_head": 16}, 354_823_168),
        (GPT2_SMALL | {"n_embd": 1280, "n_layer": 36, "n_head": 20}, 774_030_080),
        (GPT2_SMALL | {"n_embd": 1600, "n_layer": 48, "n_head": 25}, 1_557_611_200),
        (LLAMA_2_7B, 6_738_415_616),
        (LLAMA_3_1_8B, 8_030_261_248),
        (MISTRAL_7B, 7_241_732_096),
    ],
)
def test_published_configs_have_the_published_parameters(published, parameters):
    with torch.device("meta"):
        model = ModernModel(pretrained.read_config(published))
    assert count_parameters(model) == parameters


def test_old_and_new_forms_of_the_rotation_say_the_same():
    want = Stretch(factor=8.0, low=1.0, high=4.0, n_trained=8192)
    scaling = LLAMA_3_1_8B["rope_scaling"]
    old = {key: value for key, value in LLAMA_3_1_8B.items() if not key.startswith("rope_")}
    for form in (
        {"rope_theta": 500000, "rope_scaling": scaling},
        {"rope_parameters": scaling | {"rope_theta": 500000.0}},
        {"rope_parameters": scaling | {"rope_theta": 5e5}, "rope_theta": 5e5},
        {
            "rope_theta": 5e5,
            "rope_scaling": {
                ("type" if key == "rope_type" else key): value for key, value in scaling.items()
            },
        },
    ):
        config = pretrained.read_config(old | form)
        assert (config.theta, config.stretch) == (5e5, want)
    assert pretrained.read_config(old).stretch is None
    assert pretrained.read_config(old).theta == 1e4
    same = old | {
        "rope_parameters": {"rope_type": "default", "rope_theta": 7, "partial_rotary_factor": 1}
    }
    assert pretrained.read_config(same).theta == 7


def test_a_config_is_read_from_a_folder_or_a_file(llama):
    _, folder = llama
    assert pretrained.read_config(folder) == LLAMA
    assert pretrained.read_config(folder / "config.json") == LLAMA


def test_what_a_file_leaves_out_has_its_library_s_default():
    config = pretrained.read_config(THEIR_GPT2)
    assert (config.eps, config.activation, config.d_ff, config.tie_weights) == (
        1e-5,
        "gelu_tanh",
        3072,
        True,
    )
    left_out = {"num_key_value_heads", "rms_norm_eps", "tie_word_embeddings", "model_type"}
    sizes = {name: LLAMA_2_7B[name] for name in LLAMA_2_7B.keys() - left_out}
    llama = pretrained.read_config({"model_type": "llama", **sizes})
    assert (llama.eps, llama.n_kv_heads, llama.bias, llama.tie_weights) == (1e-6, 32, False, False)
    mistral = {"model_type": "mistral", **sizes}
    assert pretrained.read_config(mistral).n_kv_heads == 8


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        (THEIR_GPT2 | {"model_type": "gpt_neo"}, "one of gpt2, llama, mistral, not 'gpt_neo'"),
        ({"n_embd": 12}, "model_type must be one of .* not None"),
        (THEIR_GPT2 | {"model_type": ["gpt2"]}, "model_type must be"),
        (
            THEIR_GPT2 | {"scale_attn_by_inverse_layer_idx": True},
            "scale_attn_by_inverse_layer_idx = True means .* take a model whose .* is false",
        ),
        (THEIR_GPT2 | {"scale_attn_weights": False}, "scale_attn_weights = False means"),
        (THEIR_GPT2 | {"reorder_and_upcast_attn": True}, "reorder_and_upcast_attn = True means"),
        (THEIR_GPT2 | {"add_cross_attention": True}, "a second attention"),
        (THEIR_GPT2 | {"is_encoder_decoder": True}, "an encoder"),
        (THEIR_GPT2 | {"pruned_heads": {"0": [1]}}, "heads taken out"),
        (THEIR_GPT2 | {"auto_map": {"AutoModel": "x.Y"}}, "auto_map = .* code that comes with"),
        (THEIR_GPT2 | {"quantization_config": {"bits": 4}}, "a few bits each"),
        (THEIR_GPT2 | {"activation_function": "quick_gelu"}, "activation_function .* 'quick_gelu'"),
        (THEIR_GPT2 | {"activation_function": 3}, "activation_function .* not 3"),
        (THEIR_GPT2 | {"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        (
            THEIR_GPT2 | {"layer_norm_epsilon": "1e-5"},
            "layer_norm_epsilon must be a number, not '1e-5'",
        ),
        (THEIR_GPT2 | {"n_embd": "768"}, "n_embd must be a whole number, not '768'"),
        (THEIR_GPT2 | {"n_layer": 1.5}, "n_layer must be a whole number, not 1.5"),
        (THEIR_GPT2 | {"n_head": 7}, "n_heads must divide d_model"),
        (
            {"model_type": "gpt2", "n_embd": 768, "n_head": None},
            "must say n_head, n_layer, n_positions, vocab_size",
        ),
        (
            THEIR_GPT2 | {"embedding_multiplier": 12.0, "rope_theta": 1e4},
            r"embedding_multiplier = 12.0, rope_theta = 10000.0: .* ignore=\['embedding_mult",
        ),
        (LLAMA_2_7B | {"mlp_bias": True}, "mlp_bias = True means biases in the SwiGLU"),
        (LLAMA_2_7B | {"hidden_act": "gelu"}, "hidden_act = 'gelu' means a gate other than"),
        (LLAMA_2_7B | {"partial_rotary_factor": 0.5}, "only some features are turned"),
        (LLAMA_2_7B | {"head_dim": 7}, "d_head must be even, not 7"),
        (LLAMA_2_7B | {"sliding_window": 100}, "sliding_window = 100 hides .* to 100$"),
        (MISTRAL_7B | {"sliding_window": 4096}, "max_position_embeddings, which is 32768, to 4096"),
        (
            {key: MISTRAL_7B[key] for key in MISTRAL_7B if key != "sliding_window"},
            "sliding_window = 4096",
        ),
        (MISTRAL_7B | {"attention_bias": True}, "biases in the attention"),
        (LLAMA_2_7B | {"rope_scaling": {"type": "linear", "factor": 2.0}}, "not 'linear'"),
        (LLAMA_2_7B | {"rope_scaling": {"rope_type": "default", "factor": 2.0}}, "'factor'"),
        (LLAMA_2_7B | {"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "has the fields"),
        (LLAMA_2_7B | {"rope_scaling": [1]}, "rope_scaling must hold fields or be null"),
        (LLAMA_2_7B | {"rope_theta": "big"}, "rope_theta must be a number, not 'big'"),
        (
            LLAMA_2_7B | {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 2e4}},
            "rope_theta is 10000.0 in one place of the config and 20000.0 in rope_parameters",
        ),
        (
            LLAMA_2_7B | {"rope_parameters": {"partial_rotary_factor": 0.5}},
            "only some features are turned",
        ),
        (
            LLAMA_3_1_8B
            | {"rope_scaling": LLAMA_3_1_8B["rope_scaling"] | {"high_freq_factor": True}},
            "high_freq_factor must be a number, not True",
        ),
    ],
)
def test_configs_that_are_not_implemented_name_the_field(given, rule):
    with pytest.raises(ValueError, match=rule):
        pretrained.read_config(given)


def test_a_field_nobody_knows_can_be_ignored_by_name(gpt2):
    odd = THEIR_GPT2 | {"my_note": "trained on a rainy day", "nothing": None}
    with pytest.raises(ValueError, match=r"my_note = 'trained .* ignore=\['my_note'\]"):
        pretrained.read_config(odd)
    assert pretrained.read_config(odd, ignore=["my_note"]).d_model == 768
    assert pretrained.read_config(odd, ignore="my_note").d_model == 768
    change_config(gpt2[1], my_note=3)
    with pytest.raises(ValueError, match="my_note = 3"):
        pretrained.load(gpt2[1])
    assert pretrained.load(gpt2[1], ignore=["my_note"]).config == GPT2


def test_within_its_window_a_mistral_is_read():
    config = pretrained.read_config(
        MISTRAL_7B | {"sliding_window": 4096, "max_position_embeddings": 4096}
    )
    assert config.n_ctx == 4096


# ---- what cannot be saved


@pytest.mark.parametrize(
    ("config", "rule"),
    [
        ({}, "would be a gpt2, which has bias = True, not False; .*checkpoint.save"),
        ({"bias": True, "norm": "rms"}, "norm = 'layer', not 'rms'"),
        ({"bias": True, "norm_place": "post"}, "norm_place = 'pre', not 'post'"),
        ({"bias": True, "n_kv_heads": 2}, "n_kv_heads = 6, not 2"),
        ({"bias": True, "d_head": 4}, "d_head = 2, not 4"),
        ({"bias": True, "activation": "swiglu"}, "a plain FFN, not 'swiglu'"),
        ({"positions": "rotary", "activation": "swiglu"}, "llama, which has norm = 'rms'"),
        ({"positions": "rotary", "norm": "rms"}, "activation = 'swiglu', not 'gelu'"),
    ],
)
def test_what_neither_architecture_computes_is_not_saved(config, rule, tmp_path):
    with pytest.raises(ValueError, match=rule):
        pretrained.save(ModernModel(ModernConfig(**SIZES | config)), tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_a_model_that_was_changed_is_not_saved(tmp_path):
    model = ModernModel(GPT2)
    del model.blocks[1]
    with pytest.raises(ValueError, match=r"not the one of its config: blocks.1.* is missing"):
        pretrained.save(model, tmp_path / "x")
    model = ModernModel(GPT2)
    model.norm_final.double()
    with pytest.raises(ValueError, match=r"\['float32', 'float64'\]; convert first"):
        pretrained.save(model, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_the_book_s_own_model_can_be_saved_as_a_gpt2(tmp_path):
    model = LanguageModel(ModelConfig(**SIZES, bias=True))
    pretrained.save(model, tmp_path)
    assert torch.equal(pretrained.load(tmp_path)(ids()), model(ids()))
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}  # without it they do not read it


# ---- tokenizers

TEXT = ["the block reads, 残差 and 注意力, the block reads again"] * 3


@pytest.mark.parametrize("whole", [True, False])
def test_byte_pairs_give_every_text_back(whole, tmp_path):
    from tokenizers import ByteLevelBPETokenizer

    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(TEXT, 300, special_tokens=["<|endoftext|>"])
    if whole:
        trained.save(str(tmp_path / "tokenizer.json"))
    else:
        trained.save_model(str(tmp_path))
    tokenizer = pretrained.load_tokenizer(tmp_path)
    for text in ("the block", " 注意力 和 残差", "never seen: ☂ ñ 猫\n", ""):
        encoded = tokenizer.encode(text)
        assert encoded.ids == trained.encode(text).ids
        assert tokenizer.decode(encoded.ids) == text
    assert len(tokenizer.encode(" block").ids) < len(" block")
    assert tokenizer.encode("<|endoftext|>").ids == [0]
    assert tokenizer.get_vocab_size() == trained.get_vocab_size()


def test_no_token_is_added_that_the_files_do_not_have(tmp_path):
    from tokenizers import ByteLevelBPETokenizer

    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(TEXT, 280)
    trained.save_model(str(tmp_path))
    tokenizer = pretrained.load_tokenizer(tmp_path)
    assert tokenizer.get_vocab_size() == trained.get_vocab_size()
    assert tokenizer.decode(tokenizer.encode("<|endoftext|>").ids) == "<|endoftext|>"


def test_tokenizers_that_cannot_be_read(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no tokenizer.json in .*tokenizer.model"):
        pretrained.load_tokenizer(tmp_path)
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match=r"no tokenizer.json in"):
        pretrained.load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match=r"the tokenizer in .* cannot be read"):
        pretrained.load_tokenizer(tmp_path)
