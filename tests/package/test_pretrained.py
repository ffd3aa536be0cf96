"""Published weights against the library they are published for, built with random numbers."""

import os
import warnings
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from transformer_block import pretrained
from transformer_block.activations import record
from transformer_block.checkpoint import load as load_checkpoint
from transformer_block.checkpoint import save as save_checkpoint
from transformer_block.counting import cache_bytes, count_parameters
from transformer_block.generation import generate
from transformer_block.modern import ModernModel

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test asks a server
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what the library says of its own parts is not ours to mend
    import transformers
    from transformers.models.llama.modeling_llama import LlamaRMSNorm
    from transformers.models.mistral.modeling_mistral import MistralRMSNorm

transformers.logging.disable_progress_bar()

B, n, V, N_CTX = 2, 7, 23, 19
GPT2 = {
    "vocab_size": V,
    "n_positions": N_CTX,
    "n_embd": 12,
    "n_layer": 2,
    "n_head": 3,
    "bos_token_id": None,
    "eos_token_id": None,
}
LLAMA = {
    "vocab_size": V,
    "max_position_embeddings": N_CTX,
    "hidden_size": 12,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "bos_token_id": None,
    "eos_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 40.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 3.0,
    "original_max_position_embeddings": 11,
}
ODD = {
    "gpt2": ("GPT2", GPT2),
    "gpt2, one head, odd d_ff, untied": (
        "GPT2",
        GPT2 | {"n_head": 1, "n_inner": 13, "tie_word_embeddings": False},
    ),
    "gpt2, ReLU, large epsilon": (
        "GPT2",
        GPT2
        | {"activation_function": "relu", "layer_norm_epsilon": 1e-2, "n_embd": 20, "n_head": 5},
    ),
    "gpt2, exact GELU, one block": ("GPT2", GPT2 | {"activation_function": "gelu", "n_layer": 1}),
    "gpt2, SiLU, three blocks, heads of one feature": (
        "GPT2",
        GPT2 | {"activation_function": "silu", "n_layer": 3, "n_head": 12, "n_inner": 5},
    ),
    "llama": ("Llama", LLAMA),
    "llama, two key heads": ("Llama", LLAMA | {"num_key_value_heads": 2}),
    "llama, one wide key head, tied, large epsilon": (
        "Llama",
        LLAMA
        | {
            "num_key_value_heads": 1,
            "head_dim": 10,
            "tie_word_embeddings": True,
            "rms_norm_eps": 1e-2,
        },
    ),
    "llama, other theta, odd d_ff, biases": (
        "Llama",
        LLAMA
        | {
            "rope_parameters": {"rope_type": "default", "rope_theta": 30.0},
            "intermediate_size": 13,
            "attention_bias": True,
        },
    ),
    "llama, odd d_model, one head": (
        "Llama",
        LLAMA | {"hidden_size": 9, "num_attention_heads": 1, "head_dim": 4},
    ),
    "llama, stretched": (
        "Llama",
        LLAMA | {"rope_parameters": LLAMA3, "num_key_value_heads": 3, "head_dim": 8},
    ),
    "mistral": (
        "Mistral",
        LLAMA | {"num_key_value_heads": 3, "sliding_window": N_CTX, "head_dim": 4},
    ),
}
CLASSES = {
    "GPT2": (transformers.GPT2Config, transformers.GPT2LMHeadModel),
    "Llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "Mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a function from a name to their model, in float64, and the folder it is saved in."""
    kept = {}

    def make(name):
        if name not in kept:
            torch.manual_seed(5)
            kind, fields = ODD[name]
            config, model = CLASSES[kind]
            theirs = model(config(**fields)).double().eval()
            with torch.no_grad():  # norms and biases too, which start as 1 and 0
                for parameter in theirs.parameters():
                    parameter.add_(0.3 * torch.randn_like(parameter))
            folder = tmp_path_factory.mktemp("model")
            theirs.save_pretrained(folder)
            kept[name] = theirs, folder
        return kept[name]

    return make


@pytest.fixture
def exact(monkeypatch):
    """Let their RMSNorm keep float64, which it otherwise rounds to float32 inside."""

    def forward(norm, X):
        return (
            norm.weight * X * torch.rsqrt(X.square().mean(-1, keepdim=True) + norm.variance_epsilon)
        )

    for norm in (LlamaRMSNorm, MistralRMSNorm):
        monkeypatch.setattr(norm, "forward", forward)


def ids(length=n):
    return torch.randint(0, V, (B, length), generator=torch.Generator().manual_seed(4))


@torch.no_grad()
def compare(ours, theirs, atol):
    """Hold logits and every hidden state beside theirs, whose last is after the final norm."""
    names = ["X0", *(f"blocks.{i}" for i in range(len(ours.blocks) - 1)), "norm_final"]
    with record(ours, names) as run:
        logits = ours(ids())
    out = theirs(ids(), output_hidden_states=True)
    assert len(out.hidden_states) == len(names)
    for mine, other in zip(run.values(), out.hidden_states, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=atol)
    torch.testing.assert_close(logits, out.logits, rtol=0, atol=atol)


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("name", ODD)
def test_every_hidden_state_agrees_to_rounding(name, made):
    theirs, folder = made(name)
    ours = pretrained.load(folder)
    assert {parameter.dtype for parameter in ours.parameters()} == {torch.float64}
    compare(ours, theirs, 1e-13)
    assert count_parameters(ours) == theirs.num_parameters()


@pytest.mark.parametrize("name", ODD)
def test_every_hidden_state_agrees_in_single_precision(name, made):
    theirs, folder = made(name)
    compare(pretrained.load(folder, dtype=torch.float32), deepcopy(theirs).float(), 1e-5)


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("use_cache", [True, False])
def test_greedy_continuations_are_the_same_tokens(name, use_cache, made):
    theirs, folder = made(name)
    settings = {"max_new_tokens": N_CTX - 4, "do_sample": False, "pad_token_id": 0}
    mask = torch.ones(B, 4, dtype=torch.long)
    want = theirs.generate(ids(4), attention_mask=mask, use_cache=use_cache, **settings)
    got = generate(pretrained.load(folder), ids(4), N_CTX - 4, temperature=0, use_cache=use_cache)
    assert got.tolist() == want.tolist()


def same(one, other):
    """Hold logits of the same weights beside each other.

    Weights mapped from a file begin at other addresses, and some processors round by them.
    """
    torch.testing.assert_close(one, other, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("max_bytes", [5_000_000_000, 3000])
def test_what_is_saved_they_read_back_to_the_same_logits(name, max_bytes, made, tmp_path):
    theirs, folder = made(name)
    ours = pretrained.load(folder)
    pretrained.save(ours, tmp_path / "new" / "folder", max_bytes=max_bytes)
    files = sorted(path.name for path in (tmp_path / "new" / "folder").iterdir())
    assert (files == ["config.json", "model.safetensors"]) == (max_bytes > 10**6)
    back, found = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "new" / "folder", output_loading_info=True
    )
    assert not any(found.values()), found  # nothing is missing, and nothing too much
    assert back.dtype == torch.float64
    same(back.eval()(ids()).logits, theirs(ids()).logits)
    for key, tensor in theirs.state_dict().items():
        assert torch.equal(back.state_dict()[key], tensor)
    again = pretrained.load(tmp_path / "new" / "folder")
    assert again.config == ours.config
    for key, tensor in ours.state_dict().items():
        assert torch.equal(again.state_dict()[key], tensor)


def transposed(mha):
    mha.W_O.weight.copy_(mha.W_O.weight.T.clone())


def swapped(mha):
    W_Q, W_K = mha.W_Q.weight, mha.W_K.weight
    both = W_Q.clone(), W_K.clone()
    W_Q[: len(W_K)], W_K[:] = both[1], both[0][: len(W_K)]


def neighbours_for_halves(mha):
    """Order the features of each head as files of other origin do."""
    order = torch.arange(mha.d_head).view(2, -1).T.flatten()
    for W in (mha.W_Q.weight, mha.W_K.weight):
        W.copy_(W.unflatten(0, (-1, mha.d_head))[:, order].flatten(0, 1))


def tiled(mha):
    mha.for_each_head = lambda K: K.repeat(1, mha.n_heads // mha.n_kv_heads, 1, 1)


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(
    ("name", "mistakes", "fields"),
    [
        ("gpt2", [transposed, swapped], [{"eps": 1e-4}, {"activation": "gelu"}]),
        ("llama", [transposed, swapped], [{"eps": 1e-4}]),
        ("mistral", [swapped, tiled, neighbours_for_halves], [{"theta": 9000.0}]),
        ("llama, stretched", [swapped, tiled, neighbours_for_halves], [{"stretch": None}]),
    ],
)
def test_mistakes_in_reading_are_caught(name, mistakes, fields, made, caught):
    theirs, folder = made(name)

    def read(mistake=None, **changed):
        right = pretrained.load(folder)
        ours = ModernModel(replace(right.config, **changed)).double()
        ours.load_state_dict(right.state_dict())
        if mistake:
            with torch.no_grad():
                mistake(ours.blocks[0].mha)
        return ours

    def proof(ours):
        compare(ours, theirs, 1e-9)

    proof(read())
    caught(proof, *map(read, mistakes), *(read(**changed) for changed in fields))


@pytest.mark.parametrize("name", ["gpt2, exact GELU, one block", "llama, stretched"])
def test_the_tools_on_a_model_work_on_a_loaded_one(name, made, tmp_path):
    _, folder = made(name)
    ours = pretrained.load(folder)
    save_checkpoint(ours, tmp_path / "m.safetensors")
    back = load_checkpoint(tmp_path / "m.safetensors")
    assert back.config == ours.config
    same(back(ids()), ours(ids()))
    caches = ours.new_caches()
    ours(ids(), caches)
    kept = sum(cache.K.nbytes + cache.V.nbytes for cache in caches)
    assert kept == cache_bytes(ours.config, n, batch=B, dtype=torch.float64)


def test_their_tokenizer_gives_the_same_ids(tmp_path):
    from tokenizers import ByteLevelBPETokenizer

    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(["the block reads, 残差 and 注意力, the block"] * 3, 300)
    trained.save_model(str(tmp_path))
    theirs = transformers.GPT2Tokenizer(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    ours = pretrained.load_tokenizer(tmp_path)
    for text in ("the block", " reads  the\n\tblock's 注意力 ☂", "", "it's 12,345"):
        assert ours.encode(text).ids == theirs(text)["input_ids"]
