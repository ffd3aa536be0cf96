"""What a model costs: parameters, multiplications, bytes, and the shape of every step."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import nn

from transformer_block import _checks
from transformer_block.config import ModelConfig
from transformer_block.feed_forward import FeedForward, SwiGLU, ffn_named
from transformer_block.grouped_query import GroupedQueryAttention
from transformer_block.modern import ModernConfig
from transformer_block.norm import norm_named


def count_parameters(model: nn.Module) -> int:
    """Count the numbers that are trained; a tensor used in two places counts once.

    Nothing needs to be allocated for it: under `with torch.device("meta"):` even a large model is
    built at once.

    >>> count_parameters(nn.Linear(3, 4))
    16
    """
    return sum(parameter.numel() for parameter in model.parameters())


@dataclass(frozen=True)
class PartParameters:
    """One line of the parameter table: `shared_with` names the part that owns a shared tensor."""

    part: str
    parameters: int
    shared_with: str | None = None


def parameter_table(model: nn.Module) -> list[PartParameters]:
    """List the parameters by part (E, P, each block's norms, MHA and FFN, …); they add up."""
    owners: dict[nn.Parameter, str] = {}
    counts: dict[str, int] = {}
    shared: dict[str, str] = {}
    for path, parameter in model.named_parameters(remove_duplicate=False):
        steps = path.split(".")
        part = ".".join(steps[: 3 if steps[0] == "blocks" else 1])
        counts.setdefault(part, 0)
        if parameter in owners:
            shared[part] = owners[parameter]
        else:
            owners[parameter] = part
            counts[part] += parameter.numel()
    return [PartParameters(part, count, shared.get(part)) for part, count in counts.items()]


@dataclass(frozen=True)
class Flops:
    """Hold the floating-point operations of matrix products, multiply and add counted as 2."""

    qkvo: int  # the products with W_Q, W_K, W_V and W_O
    scores: int  # Q Kᵀ and A V: the only part that grows with n²
    ffn: int
    head: int = 0  # W_LM

    @property
    def total(self) -> int:
        """Return the sum."""
        return self.qkvo + self.scores + self.ffn + self.head

    def __add__(self, other: "Flops") -> "Flops":
        return Flops(
            self.qkvo + other.qkvo,
            self.scores + other.scores,
            self.ffn + other.ffn,
            self.head + other.head,
        )

    def __mul__(self, times: int) -> "Flops":
        return Flops(self.qkvo * times, self.scores * times, self.ffn * times, self.head * times)


def block_flops(
    n: int,
    d_model: int,
    n_heads: int,
    d_ff: int,
    *,
    d_head: int | None = None,
    n_kv_heads: int | None = None,
    activation: str = "gelu",
    n_past: int = 0,
) -> Flops:
    """Count one block's forward on n tokens, exactly, for one sequence.

    With h · d_head = d_model: QKVO 8 n d², scores 4 n (n_past + n) d, FFN 4 n d d_ff (6 n d d_ff
    for "swiglu", which has a third matrix). `n_kv_heads` heads of keys and values make W_K and
    W_V narrower; every query is compared with every key of its group all the same, so the scores
    cost what they did. Only matrix products are counted; norms, softmax, σ, the turns of rotary
    positions and the plus signs are of order n d and n² h. The scores are counted in full, since
    a masked score is computed as well.

    Raises:
        ValueError: for sizes below 1, heads that do not divide d_model, groups that are not
            equal, or an unknown name.

    >>> block_flops(n=100, d_model=512, n_heads=8, d_ff=2048)
    Flops(qkvo=209715200, scores=20480000, ffn=419430400, head=0)
    """
    _checks.positive(n=n, d_model=d_model, n_heads=n_heads, d_ff=d_ff)
    _not_negative(n_past=n_past)
    mha = _attention(d_model, n_heads, d_head, n_kv_heads)
    matrices = [W for W in _ffn(activation, d_model, d_ff).parameters() if W.ndim == 2]
    return Flops(
        qkvo=sum(2 * n * W.numel() for W in mha.parameters()),
        scores=2 * 2 * n * (n_past + n) * mha.W_O.in_features,
        ffn=sum(2 * n * W.numel() for W in matrices),
    )


def flops(config: ModelConfig, n: int, *, n_past: int = 0, batch: int = 1) -> Flops:
    """Count a forward of the whole model on n tokens that follow n_past cached ones.

    The L blocks as in `block_flops`, and the head 2 n d V (logits at every position).

    Raises:
        ValueError: if n_past + n is more than n_ctx, or a size is below 1.
    """
    _checks.positive(batch=batch)
    block = block_flops(
        n,
        config.d_model,
        config.n_heads,
        config.d_ff,
        d_head=config.d_head,
        n_kv_heads=_n_kv_heads(config),
        activation=config.activation,
        n_past=n_past,
    )
    if n_past + n > config.n_ctx:
        raise ValueError(f"the model reads at most n_ctx = {config.n_ctx} tokens, not {n_past + n}")
    head = Flops(qkvo=0, scores=0, ffn=0, head=2 * n * config.d_model * config.vocab_size)
    return (block * config.n_layers + head) * batch


def generation_flops(
    config: ModelConfig, n_prompt: int, n_new: int, *, use_cache: bool = True, batch: int = 1
) -> Flops:
    """Count what `generate` computes in all, with its cache or without.

    Raises:
        ValueError: for an empty prompt or a negative n_new.
    """
    _checks.positive(n_prompt=n_prompt)
    _not_negative(n_new=n_new)
    total, kept = Flops(0, 0, 0), 0
    for n in range(n_prompt, n_prompt + n_new):
        if use_cache and n <= config.n_ctx:
            total += flops(config, n - kept, n_past=kept, batch=batch)
            kept = n
        else:
            total += flops(config, min(n, config.n_ctx), batch=batch)
    return total


@dataclass(frozen=True)
class LedgerRow:
    """One step of a block: what it is called in words, its name in `record`, and what it costs.

    `shape` is that of one sequence; what each head has of its own exists `heads` times (None for
    what all heads share).
    `flops` are those that make it, `bytes` those that hold all copies of it.
    """

    name: str
    code: str
    shape: tuple[int, ...]
    heads: int | None
    parameters: int
    flops: int
    bytes: int

    @property
    def full_shape(self) -> tuple[int, ...]:
        """Return the shape in code, with the heads as an axis where there are any."""
        return self.shape if self.heads is None else (self.heads, *self.shape)


def shape_ledger(
    n: int,
    d_model: int,
    n_heads: int,
    d_ff: int,
    *,
    d_head: int | None = None,
    n_kv_heads: int | None = None,
    norm: str = "layer",
    activation: str = "gelu",
    bias: bool = False,
    dtype: torch.dtype = torch.float32,
) -> list[LedgerRow]:
    """Write down every step of one Pre-Norm block for one sequence of n tokens.

    Parameters and FLOPs add up to those of the block. W_O has a row of its own, as in chapter 06:
    it is a weight, so its bytes are a weight's and its FLOPs stand at the MHA output. Keys and
    values exist `n_kv_heads` times: `record` shows them as the heads read them, h times.

    Raises:
        ValueError: for sizes below 1, heads that do not divide d_model, groups that are not
            equal, or an unknown name.

    >>> for row in shape_ledger(n=100, d_model=512, n_heads=8, d_ff=2048)[2:6]:
    ...     print(row.name, row.heads, row.shape, row.parameters, row.flops)
    Q of each head 8 (100, 64) 262144 52428800
    K of each head 8 (100, 64) 262144 52428800
    V of each head 8 (100, 64) 262144 52428800
    attention map of each head 8 (100, 100) 0 10240000
    """
    with torch.device("meta"):
        of_norm = count_parameters(norm_named(norm)(d_model))
    mha = _attention(d_model, n_heads, d_head, n_kv_heads, bias)
    k, width = mha.d_head, mha.W_O.in_features
    cost = block_flops(n, d_model, n_heads, d_ff, d_head=k, activation=activation)
    ffn = _ffn(activation, d_model, d_ff)
    stream, heads, wide = (n, d_model), (n, k), (n, d_ff)

    rows: list[LedgerRow] = []

    def row(
        name: str,
        code: str,
        shape: tuple[int, ...],
        parameters: int = 0,
        flops: int = 0,
        h: int | None = None,
    ) -> None:
        size = (h or 1) * shape[0] * shape[1] * dtype.itemsize
        rows.append(LedgerRow(name, code, shape, h, parameters, flops, size))

    row("X", "X", stream)
    row("Norm(X)", "norm_mha", stream, of_norm)
    for letter, W in (("Q", mha.W_Q), ("K", mha.W_K), ("V", mha.W_V)):
        into, made = count_parameters(W), 2 * n * W.weight.numel()
        row(f"{letter} of each head", f"mha.{letter}", heads, into, made, W.out_features // k)
    row("attention map of each head", "mha.A", (n, n), 0, cost.scores // 2, n_heads)
    row("output of each head", "mha.Z", heads, 0, cost.scores // 2, n_heads)
    row("concat of the heads", "mha.concat", (n, width))
    row("W_O", "mha.W_O", (width, d_model), count_parameters(mha.W_O))
    row("MHA output", "mha", stream, 0, 2 * n * mha.W_O.weight.numel())
    row("H, after the residual", "H", stream)
    row("Norm(H)", "norm_ffn", stream, of_norm)
    names = {"pre": "first projection", "up": "second factor of the gate"}
    for site, name in ffn.ups.items():
        up = ffn.get_submodule(name)
        row(names[site], f"ffn.{site}", wide, count_parameters(up), 2 * n * d_model * d_ff)
    row("activation", "ffn.hidden", wide)
    row("second projection", "ffn", stream, count_parameters(ffn.W_2), 2 * n * d_ff * d_model)
    row("X', after the residual", "out", stream)
    return rows


def weight_bytes(model: nn.Module, dtype: torch.dtype | None = None) -> int:
    """Count the bytes of the weights, as they are or as they would be in another dtype.

    >>> weight_bytes(nn.Linear(3, 4)), weight_bytes(nn.Linear(3, 4), torch.bfloat16)
    (64, 32)
    """
    return sum(p.numel() * (dtype or p.dtype).itemsize for p in model.parameters())


def cache_bytes(
    config: ModelConfig, n: int, *, batch: int = 1, dtype: torch.dtype = torch.float32
) -> int:
    """Count the bytes of a key–value cache of n tokens: 2 · L · B · n · h_kv · d_head numbers.

    h_kv · d_head is d_model unless a `ModernConfig` says otherwise.

    Raises:
        ValueError: for sizes below 1.
    """
    _checks.positive(n=n, batch=batch)
    kv_width = _n_kv_heads(config) * config.d_head
    return 2 * config.n_layers * batch * n * kv_width * dtype.itemsize


def activation_bytes(
    config: ModelConfig, n: int, *, batch: int = 1, dtype: torch.dtype = torch.float32
) -> int:
    """Count the bytes of the activations a forward makes: the ledger's of each block, and the ends.

    The ends are X^(0), the last norm's output (Pre-Norm) and the logits. This is what `record`
    would keep of them, but a group's keys and values count once. Fused kernels never write the
    attention maps, and a forward without gradients frees most of it at once.

    Raises:
        ValueError: for sizes below 1.
    """
    _checks.positive(n=n, batch=batch)
    block = shape_ledger(
        n,
        config.d_model,
        config.n_heads,
        config.d_ff,
        d_head=config.d_head,
        n_kv_heads=_n_kv_heads(config),
        activation=config.activation,
        dtype=dtype,
    )
    made = sum(row.bytes for row in block if row.code not in ("X", "mha.W_O"))
    stream = n * config.d_model * dtype.itemsize
    # A Post-Norm stack ends without a norm of its own, but each block makes two sums before its
    # norms (X + MHA, H + FFN), where Pre-Norm has Norm(X), Norm(H) and the sums: as many.
    ends = stream * (2 if config.norm_place == "pre" else 1)
    logits = n * config.vocab_size * dtype.itemsize
    return batch * (config.n_layers * made + ends + logits)


@cache
def _attention(
    d_model: int,
    n_heads: int,
    d_head: int | None,
    n_kv_heads: int | None,
    bias: bool = False,
) -> GroupedQueryAttention:
    """Build an attention that holds no numbers, to be counted; it refuses what does not fit."""
    groups = n_heads if n_kv_heads is None else n_kv_heads
    with torch.device("meta"):
        return GroupedQueryAttention(d_model, n_heads, groups, d_head, bias=bias)


@cache
def _ffn(activation: str, d_model: int, d_ff: int) -> FeedForward | SwiGLU:
    """Build an FFN that holds no numbers, to be counted."""
    with torch.device("meta"):
        return ffn_named(activation)(d_model, d_ff)


def _n_kv_heads(config: ModelConfig) -> int:
    return config.n_kv_heads if isinstance(config, ModernConfig) else config.n_heads


def _not_negative(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 0:
            raise ValueError(f"{name} must be a whole number of at least 0, not {size!r}")
