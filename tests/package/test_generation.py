import importlib
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from transformer_block.config import ModelConfig
from transformer_block.generation import generate, next_token_probs
from transformer_block.language_model import LanguageModel

CONFIG = ModelConfig(vocab_size=17, n_ctx=7, d_model=12, n_heads=3, n_layers=2, d_ff=20)
VARIANTS = [{}, {"norm_place": "post"}, {"norm": "rms", "activation": "swiglu"}]
module = importlib.import_module("transformer_block.generation")


def sharp(config=CONFIG):
    """A model whose distributions are far from uniform, so that mistakes show."""
    model = LanguageModel(config)
    with torch.no_grad():
        model.E.weight *= 10
        model.P.weight *= 10
        model.W_LM.weight *= 20
    return model


def logits_of(*probabilities):
    return torch.tensor([probabilities], dtype=torch.float64).log()


# ---- next_token_probs


def test_temperature_is_a_softmax_of_scaled_logits(double):
    logits = torch.randn(2, 17)
    torch.testing.assert_close(next_token_probs(logits), logits.softmax(-1))
    torch.testing.assert_close(next_token_probs(logits, 0.7), (logits / 0.7).softmax(-1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("temperature", [0, 0.0, 1e-45, 1e-310])
def test_no_temperature_is_greedy_with_ties_to_the_lowest_id(dtype, temperature):
    logits = torch.tensor([[1.0, 3.0, 3.0, -9.0], [5.0, 4.9375, 0.0, 0.0]], dtype=dtype)
    probs = next_token_probs(logits, temperature, top_k=3, top_p=0.9)
    assert probs.dtype == dtype
    assert probs.tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]


@pytest.mark.parametrize("temperature", [1e-29, 1e-8, 1e30])
def test_extreme_temperatures_stay_finite(temperature):
    probs = next_token_probs(torch.tensor([[3e38, -3e38, 0.0]]), temperature)
    assert probs.isfinite().all()
    torch.testing.assert_close(probs.sum(-1), torch.ones(1))


def test_top_k_keeps_exactly_k_the_lower_id_first():
    logits = logits_of(0.2, 0.2, 0.4, 0.2)
    torch.testing.assert_close(
        next_token_probs(logits, top_k=2), logits_of(1 / 3, 0, 2 / 3, 0).exp()
    )
    torch.testing.assert_close(next_token_probs(logits, top_k=4), logits.exp())


def drops_the_token_that_crosses(logits, top_p):
    probs, ids = logits.softmax(-1).sort(descending=True, stable=True)
    keep = probs.cumsum(-1) < top_p  # the mistake: should look at what came before
    probs = probs.where(keep, 0) / probs.where(keep, 0).sum()
    return torch.zeros_like(probs).scatter(-1, ids, probs)


def test_top_p_keeps_the_token_that_crosses_p(caught):
    def proof(probs_of):
        for top_p, kept in [(0.2, 1), (0.5, 1), (0.6, 2), (0.8, 2), (0.95, 3), (0.96, 4), (1.0, 4)]:
            probs = probs_of(logits_of(0.3, 0.5, 0.15, 0.05), top_p=top_p)
            want = logits_of(0.3, 0.5, 0.15, 0.05).exp()
            want[:, [1, 0, 2, 3][kept:]] = 0
            assert torch.allclose(probs, want / want.sum()), (top_p, probs)

    proof(next_token_probs)
    caught(proof, drops_the_token_that_crosses)


def test_top_p_reaches_p_to_rounding_in_float32():
    probs = next_token_probs(torch.tensor([[0.5, 0.3, 0.2]]).log(), top_p=0.8)
    assert (probs > 0).tolist() == [[True, True, False]]
    assert next_token_probs(torch.randn(1, 17), top_p=1e-9).count_nonzero() == 1


def test_top_p_1_keeps_every_token():
    rare = torch.tensor([[0.0, -30.0]])  # e⁻³⁰ is lost in 1 − e⁻³⁰, and must stay
    assert (next_token_probs(rare, top_p=1) > 0).all()


def test_top_k_comes_before_top_p():
    # Of the two tokens that top-k leaves, the first alone has 5/8 ≥ 0.6.
    probs = next_token_probs(logits_of(0.5, 0.3, 0.2), top_k=2, top_p=0.6)
    torch.testing.assert_close(probs, logits_of(1.0, 0, 0).exp())
    assert next_token_probs(logits_of(0.5, 0.3, 0.2), top_p=0.6).count_nonzero() == 2


@settings(deadline=None, max_examples=60)  # a busy machine is no failure
@given(
    st.integers(1, 4),
    st.integers(1, 9),
    st.floats(0, 50),
    st.integers(1, 9) | st.none(),
    st.floats(1e-6, 1) | st.none(),
    st.integers(0, 9),
)
def test_always_a_distribution_over_the_most_probable(B, V, temperature, top_k, top_p, seed):
    logits = torch.randn(B, V, generator=torch.Generator().manual_seed(seed)).double() * 9
    top_k = None if top_k is None else min(top_k, V)
    probs = next_token_probs(logits, temperature, top_k, top_p)
    torch.testing.assert_close(probs.sum(-1), torch.ones(B).double())
    kept = (probs > 0).sum(-1)
    assert (kept >= 1).all()
    assert top_k is None or (kept <= top_k).all()
    assert (probs.argmax(-1) == logits.argmax(-1)).all()
    # Alone or in a batch: the same.
    torch.testing.assert_close(next_token_probs(logits[:1], temperature, top_k, top_p), probs[:1])


@pytest.mark.parametrize(
    "how", [{}, {"temperature": 0.7}, {"top_k": 3}, {"top_p": 0.7, "top_k": 4}]
)
def test_gradients_pass(how):
    logits = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: next_token_probs(x, **how), logits)


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"temperature": -0.1}, "temperature must be a finite number of at least 0, not -0.1"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"top_k": 0}, "top_k must be a whole number of at least 1, not 0"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 2.5}, "top_k"),
        ({"top_k": 18}, "18 > 17; None keeps every token"),
        ({"top_p": 0.0}, "0 < p ≤ 1, not 0.0"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_p": math.nan}, "top_p"),
    ],
)
def test_settings_that_cannot_be_met_are_refused(settings, rule, as_a_reader):
    with pytest.raises(ValueError, match=rule):
        next_token_probs(torch.randn(2, 17), **settings)
    with pytest.raises(ValueError, match=rule):
        generate(LanguageModel(CONFIG), [[1]], 0, **settings)


@pytest.mark.parametrize(
    ("logits", "rule"),
    [
        (torch.tensor([[1.0, math.nan, -math.inf]]), "2 logits are not finite"),
        (torch.randn(17), "floating-point"),
        (torch.randn(2, 5, 17), r"logits\[:, -1\]"),
        (torch.ones(2, 17, dtype=torch.long), "torch.int64"),
        (torch.ones(2, 0), "floating-point"),
    ],
)
def test_logits_that_give_no_distribution_are_refused(logits, rule, as_a_reader):
    with pytest.raises(ValueError, match=rule):
        next_token_probs(logits)


# ---- the cache


def test_a_model_of_one_block_has_one_cache(double):
    model, prompt = sharp(replace(CONFIG, n_layers=1)), torch.tensor([[1, 5, 2]])
    cached, whole = (
        generate(model, prompt, 4, temperature=0, use_cache=use_cache)
        for use_cache in (True, False)
    )
    assert torch.equal(cached, whole)


@pytest.mark.parametrize("change", VARIANTS)
@pytest.mark.parametrize("n_prompt", [1, 4, 7, 9])
def test_cached_equals_uncached(change, n_prompt, double, monkeypatch):
    model, seen = sharp(replace(CONFIG, **change)), []

    def listening(logits, *settings):
        seen.append(next_token_probs(logits, *settings))
        return seen[-1]

    monkeypatch.setattr(module, "next_token_probs", listening)
    ids = torch.randint(0, 17, (2, n_prompt))
    texts = [generate(model, ids, 9, temperature=0, use_cache=use) for use in (True, False)]
    assert torch.equal(*texts)
    seen.clear()
    texts = [
        generate(model, ids, 9, use_cache=use, generator=torch.Generator().manual_seed(1))
        for use in (True, False)
    ]
    assert torch.equal(*texts)
    torch.testing.assert_close(torch.stack(seen[:9]), torch.stack(seen[9:]))


def cached_in_chunks(model, ids, chunks):
    caches = model.new_caches()
    return torch.cat([model(part, caches) for part in ids.split(chunks, dim=1)], dim=1)


CHUNKS = [[1] * 7, [2, 3, 1, 1], [3, 2, 2], [7]]


@pytest.mark.parametrize("change", VARIANTS)
def test_the_cache_may_be_filled_in_chunks(change, double, monkeypatch, caught):
    model, ids = sharp(replace(CONFIG, **change)), torch.randint(0, 17, (2, 7))
    whole = model(ids)

    def proof(plant):
        with monkeypatch.context() as patch:
            plant(patch)
            for chunks in CHUNKS:
                assert torch.allclose(cached_in_chunks(model, ids, chunks), whole)

    def top_left(patch):
        """`is_causal` aligns the mask at the first key, not at the last."""
        patch.setattr(
            "transformer_block.multi_head.MultiHeadAttention.attend",
            lambda self, Q, K, V, mask: F.scaled_dot_product_attention(Q, K, V, is_causal=True),
        )

    def no_mask_on_the_cached_path(patch):
        patch.setattr(
            "transformer_block.language_model.causal_mask",
            lambda n, n_past, device: torch.ones(n, n_past + n, dtype=torch.bool),
        )

    def positions_begin_again(patch):
        """Every chunk is given the positions from 0: off by what is kept."""
        P = model.P.weight.detach()

        class FromZero(nn.Embedding):
            def __getattr__(self, name):
                weight = super().__getattr__(name)
                return _Restarting(weight) if name == "weight" else weight

        class _Restarting:
            def __init__(self, weight):
                self.weight = weight

            def __getitem__(self, places):
                return self.weight[: places.stop - places.start]

        patch.setitem(model._modules, "P", FromZero.from_pretrained(P))

    proof(lambda patch: None)
    caught(proof, top_left, no_mask_on_the_cached_path, positions_begin_again)


def test_one_query_reads_every_cached_key():
    # Equal scores, values 1, 2, 6: the mean is 3, not the first value.
    V = torch.tensor([1.0, 2.0, 6.0]).view(1, 1, 3, 1)
    model = LanguageModel(CONFIG)
    Z = model.blocks[0].mha.attend(torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 3, 1), V, None)
    assert Z.item() == pytest.approx(3)


def test_the_cache_reads_only_the_new_token(monkeypatch):
    model, lengths = LanguageModel(CONFIG), []
    model.register_forward_pre_hook(lambda _, args: lengths.append(args[0].shape[1]))
    generate(model, [[1, 2, 3]], 7)
    assert lengths == [3, 1, 1, 1, 1, 7, 7]
    lengths.clear()
    generate(model, [[1, 2, 3]], 7, use_cache=False)
    assert lengths == [3, 4, 5, 6, 7, 7, 7]


# ---- generate


def test_context_4_prompt_3_five_new_gives_8():
    model = sharp(replace(CONFIG, n_ctx=4))
    for use_cache in (True, False):
        assert generate(model, [[3, 1, 2]], 5, use_cache=use_cache).shape == (1, 8)


def test_beyond_the_context_the_last_n_ctx_tokens_are_read(double):
    model = sharp()
    text = generate(model, torch.randint(0, 17, (2, 3)), 12, temperature=0)
    for end in range(3, 15):
        window = text[:, max(0, end - 7) : end]
        assert torch.equal(model(window)[:, -1].argmax(-1), text[:, end])


def test_a_batch_is_as_good_as_one_by_one():
    model, ids = sharp(), torch.randint(0, 17, (3, 4))
    alone = [generate(model, ids[i : i + 1], 6, temperature=0) for i in range(3)]
    assert torch.equal(generate(model, ids, 6, temperature=0), torch.cat(alone))


def test_the_seed_decides_the_text_and_greedy_needs_none():
    model, ids = LanguageModel(CONFIG), [[1, 2], [3, 4]]

    def text(seed, **settings):
        return generate(model, ids, 20, generator=torch.Generator().manual_seed(seed), **settings)

    assert torch.equal(text(5), text(5))
    assert not torch.equal(text(5), text(6))
    for temperature in (0, 1e-45):
        assert torch.equal(text(5, temperature=temperature), text(6, temperature=temperature))
    assert torch.equal(text(5, top_k=1), text(6, temperature=0))


def test_samples_follow_the_distribution():
    model = sharp()
    ids = torch.tensor([[1, 2]]).expand(4000, 2)
    drawn = generate(model, ids, 1, top_k=4, generator=torch.Generator().manual_seed(1))[:, -1]
    want = next_token_probs(model(ids[:1])[:, -1], top_k=4)[0].detach()
    found = drawn.bincount(minlength=17) / 4000
    assert (found[want == 0] == 0).all()
    assert (found - want).abs().max() < 0.04  # five standard deviations of the widest


def test_the_prompt_is_kept_and_the_given_tensor_too():
    ids = torch.tensor([[1, 2, 3]], dtype=torch.int32)
    text = generate(LanguageModel(CONFIG), ids, 2)
    assert text.dtype == torch.long
    assert text[:, :3].tolist() == ids.tolist() == [[1, 2, 3]]
    assert torch.equal(generate(LanguageModel(CONFIG), ids, 0), ids.long())


def test_modes_and_gradients_are_left_alone():
    model = LanguageModel(CONFIG).train()
    model.blocks[1].eval()
    modes = [part.training for part in model.modules()]
    during = []
    handle = model.register_forward_pre_hook(
        lambda part, _: during.append((part.blocks[0].training, torch.is_grad_enabled()))
    )
    generate(model, [[1]], 2)
    assert during == [(False, False)] * 2
    assert [part.training for part in model.modules()] == modes
    handle.remove()

    def stumble(*_):
        raise RuntimeError("stumbled")

    model.register_forward_pre_hook(stumble)
    with pytest.raises(RuntimeError, match="stumbled"):
        generate(model, [[1]], 2)
    assert [part.training for part in model.modules()] == modes


@pytest.mark.parametrize(
    ("ids", "n_new", "rule"),
    [
        (torch.zeros(1, 0, dtype=torch.long), 2, r"hold no token \(shape \[1, 0\]\)"),
        ([[]], 2, r"hold no token \(shape \[1, 0\]\)"),
        ([], 2, r"hold no token \(shape \[0\]\)"),
        ([[1, 2], [3]], 2, r"equally long, not \[1, 2\] tokens"),
        (torch.tensor([1, 2]), 2, r"ids\[None\]"),
        (torch.tensor([[1.0]]), 2, r"whole numbers \[B, n\], not torch.float32"),
        (torch.tensor([[True]]), 2, r"whole numbers \[B, n\], not torch.bool"),
        ([[17]], 2, "0 … 16, but run from 17 to 17"),
        ([[-1, 3]], 2, "0 … 16"),
        ([[1]], -1, "n_new must be a whole number of at least 0, not -1"),
        ([[1]], True, "n_new"),
    ],
)
def test_bad_input_is_refused(ids, n_new, rule, as_a_reader):
    with pytest.raises(ValueError, match=rule):
        generate(LanguageModel(CONFIG), ids, n_new)
