"""From distributions to text: one token drawn, appended, and read again."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn

from transformer_block import _checks
from transformer_block.language_model import LanguageModel

# Below this, logits are not divided by the temperature but the largest is taken: 1/T would
# overflow. It lies far under any temperature at which two different logits still share.
GREEDY_BELOW = 1e-30


def next_token_probs(
    logits: Float[Tensor, "B vocab_size"],
    temperature: int | float = 1.0,
    top_k: int | None = None,
    top_p: int | float | None = None,
) -> Float[Tensor, "B vocab_size"]:
    """Turn logits into the distribution a token is drawn from: softmax(logits / T) of what is kept.

    The order is: temperature, then top-k, then top-p on what top-k has left (its probabilities
    made to sum to 1 again). Top-k keeps exactly k tokens. Top-p keeps the smallest set of the most
    probable tokens whose probability reaches p, the token that crosses p included, so at least
    one. Where probabilities are equal the lower id comes first. Temperature 0 (or so small that
    1/T would overflow) is greedy: all on the largest logit, the lowest id among equals.

    Raises:
        ValueError: for a temperature that is negative, infinite or not a number, a top_k outside
            1 … vocab_size, a top_p outside 0 < p ≤ 1, or logits that are not finite `[B, V]`.

    Source: Holtzman et al. (2020), section 3.1, for top-p; Fan et al. (2018), section 5, for top-k.

    >>> logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
    >>> next_token_probs(logits, top_p=0.6)
    tensor([[0.6250, 0.3750, 0.0000]])
    >>> next_token_probs(logits, temperature=0)
    tensor([[1., 0., 0.]])
    """
    _check_logits(logits)
    _check_sampling(logits.shape[-1], temperature, top_k, top_p)
    if temperature < GREEDY_BELOW:
        return F.one_hot(logits.argmax(dim=-1), logits.shape[-1]).to(logits.dtype)
    wide = logits.float() if logits.dtype.itemsize < 4 else logits
    # The largest becomes 0 first, so that a small temperature sends the others to −∞, never to NaN.
    scaled = (wide - wide.amax(dim=-1, keepdim=True)) / temperature
    if top_k is None and top_p is None:
        return scaled.softmax(dim=-1).to(logits.dtype)
    ranked, ids = scaled.sort(dim=-1, descending=True, stable=True)
    if top_k is not None:
        rank = torch.arange(ranked.shape[-1], device=ranked.device)
        ranked = ranked.masked_fill(rank >= top_k, -math.inf)
    probs = ranked.softmax(dim=-1)
    if top_p is not None and top_p < 1:
        # A token is kept while those before it have not reached p. The slack is rounding:
        # 0.5 + 0.3 must count as 0.8.
        before = probs.cumsum(dim=-1) - probs
        keep = before < top_p - 8 * torch.finfo(probs.dtype).eps
        keep[:, 0] = True
        probs = probs.where(keep, 0)
        probs = probs / probs.sum(dim=-1, keepdim=True)
    return torch.zeros_like(probs).scatter(-1, ids, probs).to(logits.dtype)


@torch.no_grad()
def generate(
    model: LanguageModel,
    ids: Integer[Tensor, "B n"] | Sequence[Sequence[int]],
    n_new: int,
    *,
    temperature: int | float = 1.0,
    top_k: int | None = None,
    top_p: int | float | None = None,
    use_cache: bool = True,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "B n_all"]:
    """Continue every prompt by n_new tokens, each drawn from `next_token_probs`.

    With `use_cache` only the new token is read at each step, beside the keys and values kept of
    the others. Once the text is longer than n_ctx, the model reads its last n_ctx tokens. Each
    token then moves to another learned position at each step, so nothing kept would still be
    true, and the window is read afresh.

    The same seed of `generator` gives the same text; the model's train/eval modes are left as
    they were. Prompts in one batch are equally long: there is no padding.

    Raises:
        ValueError: for an empty prompt, prompts of unequal length, ids that are not whole numbers
            in the vocabulary, a negative n_new, or sampling settings that cannot be met.
    """
    ids = _prompts(model, ids)
    n_ctx = model.config.n_ctx
    _check_sampling(model.config.vocab_size, temperature, top_k, top_p)
    if isinstance(n_new, bool) or n_new < 0:
        raise ValueError(f"n_new must be a whole number of at least 0, not {n_new!r}")
    caches = model.new_caches() if use_cache else None
    with _evaluating(model):
        for _ in range(n_new):
            if caches is not None and ids.shape[1] <= n_ctx:
                logits = model(ids[:, len(caches[0]) :], caches)
            else:
                logits = model(ids[:, -n_ctx:])
            probs = next_token_probs(logits[:, -1], temperature, top_k, top_p)
            if temperature < GREEDY_BELOW:
                drawn = probs.argmax(dim=-1, keepdim=True)
            else:
                drawn = torch.multinomial(probs, 1, generator=generator)
            ids = torch.cat([ids, drawn], dim=1)
    return ids


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Put every part into eval mode, and give each its own mode back, come what may."""
    modes = [(part, part.training) for part in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for part, training in modes:
            part.training = training


def _prompts(model: LanguageModel, ids: Tensor | Sequence[Sequence[int]]) -> Tensor:
    if not isinstance(ids, Tensor):
        lengths = sorted({len(prompt) for prompt in ids})
        if len(lengths) > 1:
            raise ValueError(
                f"the prompts of one batch must be equally long, not {lengths} tokens; "
                "continue them one by one, or group them by length"
            )
        ids = torch.tensor(ids, device=model.E.weight.device)
    return _checks.ids(ids, model.config.vocab_size)


def _check_logits(logits: Tensor) -> None:
    if logits.ndim != 2 or logits.numel() == 0 or not logits.is_floating_point():
        raise ValueError(
            f"logits must be floating-point [B, vocab_size], not {logits.dtype} "
            f"{list(logits.shape)}; the last position of a model's is logits[:, -1]"
        )
    if not logits.isfinite().all():
        raise ValueError(
            f"{int((~logits.isfinite()).sum())} logits are not finite (NaN or inf); "
            "there is no distribution to draw from"
        )


def _check_sampling(
    vocab_size: int, temperature: int | float, top_k: int | None, top_p: int | float | None
) -> None:
    if not (math.isfinite(temperature) and temperature >= 0):
        raise ValueError(
            f"temperature must be a finite number of at least 0, not {temperature!r}; "
            "0 is greedy, 1 leaves the model's own distribution"
        )
    if top_k is not None:
        _checks.positive(top_k=top_k)
        if top_k > vocab_size:
            raise ValueError(
                f"top_k must lie in 1 … vocab_size; {top_k} > {vocab_size}; None keeps every token"
            )
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p must lie in 0 < p ≤ 1, not {top_p!r}; None keeps every token")
