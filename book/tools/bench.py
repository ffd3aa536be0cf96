"""Measure the package beside the code that people use, and store what `book/benchmarks.md` shows.

`python -m book.tools.bench [--quick]`. Every peer has our weights, and its logits are compared
before it is timed. The peers take turns within one run, in a new order each round, and what counts
is the ratio of times within a round: a machine that is busy for a moment is busy for all.
"""

import argparse
import json
import math
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from book.tools.common import ROOT, run_command
from book.tools.peers import Peer, encoder, nano, ours, reference
from transformer_block.config import ModelConfig
from transformer_block.counting import flops
from transformer_block.language_model import LanguageModel
from transformer_block.modern import ModernConfig, ModernModel
from transformer_block.training.loop import next_token_loss

RESULTS = ROOT / "book" / "benchmarks.json"


@dataclass(frozen=True, kw_only=True)
class Size:
    """Say how large a model is measured, and on how much."""

    d_model: int
    n_layers: int
    n_heads: int
    n: int
    batch: int
    vocab_size: int = 1000
    n_prompt: int = 16
    n_new: int = 48

    @property
    def name(self) -> str:
        """What the page calls it."""
        return f"d_model {self.d_model}, {self.n_layers} blocks, {self.batch} × {self.n} tokens"

    def gpt(self) -> ModelConfig:
        """Return the model of this size as GPT-2 has it: with biases, and GELU's approximation."""
        return ModelConfig(
            vocab_size=self.vocab_size,
            n_ctx=max(self.n, self.n_prompt + self.n_new),
            d_model=self.d_model,
            n_heads=self.n_heads,
            n_layers=self.n_layers,
            d_ff=4 * self.d_model,
            activation="gelu_tanh",
            bias=True,
        )

    def llama(self) -> ModernConfig:
        """Return the model of this size as Llama has it, with a pair of keys for two heads."""
        return ModernConfig(
            vocab_size=self.vocab_size,
            n_ctx=max(self.n, self.n_prompt + self.n_new),
            d_model=self.d_model,
            n_heads=self.n_heads,
            n_kv_heads=self.n_heads // 2,
            n_layers=self.n_layers,
            d_ff=8 * self.d_model // 3,
            norm="rms",
            activation="swiglu",
            positions="rotary",
        )


SIZES = (
    Size(d_model=64, n_layers=2, n_heads=4, n=64, batch=16),
    Size(d_model=256, n_layers=4, n_heads=8, n=128, batch=4),
    Size(d_model=768, n_layers=6, n_heads=12, n=256, batch=1),
)
TINY = (Size(d_model=16, n_layers=1, n_heads=2, n=8, batch=2, vocab_size=20, n_prompt=3, n_new=4),)


# What can be given the weights of our GPT-2, and of our Llama; ours first.
PEERS: dict[str, tuple[Callable[[LanguageModel], Peer], ...]] = {
    "GPT-2": (ours, nano, encoder, reference),
    "Llama": (ours, reference),
}


def model_like(kind: str, size: Size) -> LanguageModel:
    """Return our model of one of the kinds in `PEERS`, drawn from one seed."""
    torch.manual_seed(1)
    return LanguageModel(size.gpt()) if kind == "GPT-2" else ModernModel(size.llama())


def tasks(size: Size) -> dict[str, Callable[[Peer], Callable[[], object] | None]]:
    """Return what is measured by name: each makes, for a peer, what is called and timed."""
    g = torch.Generator().manual_seed(2)
    ids = torch.randint(size.vocab_size, (size.batch, size.n), generator=g)

    def forward(peer: Peer) -> Callable[[], object]:
        return torch.no_grad()(lambda: peer.logits(ids))

    def step(peer: Peer) -> Callable[[], object]:
        optimiser = torch.optim.AdamW(peer.model.parameters(), lr=1e-6, fused=True)

        def one() -> None:
            optimiser.zero_grad()
            next_token_loss(peer.logits(ids), ids).backward()  # type: ignore[no-untyped-call]  # torch's
            optimiser.step()

        return one

    def writes(batch: int) -> Callable[[Peer], Callable[[], object] | None]:
        prompts = torch.randint(size.vocab_size, (batch, size.n_prompt), generator=g)

        def write(peer: Peer) -> Callable[[], object] | None:
            of = peer.write
            return None if of is None else lambda: of(prompts, size.n_new)

        return write

    return {
        "forward": forward,
        "training step": step,
        "writing, 1 text": writes(1),
        "writing, 8 texts": writes(8),
    }


def take_turns(
    runs: Mapping[str, Callable[[], object]], rounds: int, seed: int = 0
) -> dict[str, list[float]]:
    """Time each run once a round, in a new order each time; one round before goes untimed."""
    order, shuffle = list(runs), random.Random(seed).shuffle  # noqa: S311 (an order of turns)
    took: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        shuffle(order)
        for name in order:
            began = time.perf_counter()
            runs[name]()
            if number:
                took[name].append(time.perf_counter() - began)
    return took


def quartiles(ratios: Sequence[float]) -> list[float]:
    """Return the lower quartile, the median and the upper quartile, to three digits."""
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return [round(value, 3) for value in (low, middle, high)]


def compare(sizes: Sequence[Size], rounds: int) -> list[dict[str, Any]]:
    """Return, for each size, task and peer, how many times as long as ours it takes."""
    rows = []
    for size in sizes:
        for kind, makers in PEERS.items():
            model = model_like(kind, size)
            mine, *others = peers = [make(model) for make in makers]
            ids = torch.randint(size.vocab_size, (2, size.n))
            for peer in peers:
                peer.model.eval()
                peer.check(model, ids)
            for task, make in tasks(size).items():
                runs = {peer.name: run for peer in peers if (run := make(peer)) is not None}
                took = take_turns(runs, rounds)
                for peer in others:
                    if peer.name in took:
                        ratios = [
                            theirs / our
                            for theirs, our in zip(took[peer.name], took[mine.name], strict=True)
                        ]
                        row = {"size": size.name, "task": task, "peer": peer.name}
                        rows.append({**row, "ratio": quartiles(ratios)})
                        print(rows[-1], flush=True)
    return rows


@torch.no_grad()
def share_of_product(sizes: Sequence[Size], rounds: int) -> list[dict[str, Any]]:
    """Return our forward's FLOP/s as a share of a plain product's of as many tokens."""
    rows = []
    for size in sizes:
        model, tokens = LanguageModel(size.gpt()).eval(), size.batch * size.n
        ids = torch.randint(size.vocab_size, (size.batch, size.n))
        X, W = torch.randn(tokens, size.d_model), torch.randn(4 * size.d_model, size.d_model)
        in_product = 2 * tokens * W.numel()
        many = math.ceil(1e8 / in_product)  # long enough to be timed

        def products(X: Tensor = X, W: Tensor = W, many: int = many) -> None:
            for _ in range(many):
                X @ W.T

        runs = {"product": products, "model": lambda model=model, ids=ids: model(ids)}
        took = take_turns(runs, rounds)
        counted = flops(size.gpt(), size.n, batch=size.batch).total
        ratios = [
            (counted / one) / (many * in_product / product)
            for one, product in zip(took["model"], took["product"], strict=True)
        ]
        rows.append({"size": size.name, "share": quartiles(ratios)})
        print(rows[-1], flush=True)
    return rows


def exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """Return the slope of log time over log size: 1 where twice the size takes twice the time.

    >>> round(exponent([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    x, y = ([math.log(v) for v in values] for values in (sizes, times))
    return statistics.linear_regression(x, y).slope


GROWING: dict[str, tuple[int, ...]] = {
    "n": (256, 512, 1024, 2048),
    "d_model": (256, 512, 1024),
    "n_layers": (2, 4, 8, 16),
}


@torch.no_grad()
def growth(rounds: int, growing: Mapping[str, Sequence[int]] = GROWING) -> list[dict[str, Any]]:
    """Return how the forward's time grows with one size, and how its FLOPs do."""
    rows = []
    for name, values in growing.items():
        runs: dict[str, Callable[[], object]] = {}
        counted = []
        for value in values:
            n, d_model, n_layers = (
                value if name == size else usual
                for size, usual in (("n", 128), ("d_model", 128), ("n_layers", 2))
            )
            config = ModelConfig(
                vocab_size=100,
                n_ctx=n,
                d_model=d_model,
                n_heads=4,
                n_layers=n_layers,
                d_ff=4 * d_model,
            )
            model, ids = LanguageModel(config).eval(), torch.randint(100, (1, n))
            runs[str(value)] = lambda model=model, ids=ids: model(ids)  # type: ignore[misc]  # bound now
            counted.append(float(flops(config, n).total))
        took = take_turns(runs, rounds)
        times = [statistics.median(took[str(value)]) for value in values]
        row = {"grows": name, "from": values[0], "to": values[-1]}
        slopes = {"time": exponent(values, times), "flops": exponent(values, counted)}
        rows.append(row | {key: round(slope, 2) for key, slope in slopes.items()})
        print(rows[-1], flush=True)
    return rows


PEAK = """
import ctypes, gc, re
from pathlib import Path
from book.tools import bench
size = bench.Size(**{size!r})
peer = bench.PEERS[{kind!r}][{place}](bench.model_like({kind!r}, size))
one = bench.tasks(size)["training step"](peer)
gc.collect()
ctypes.CDLL(None).malloc_trim(0)  # else the steps would live in what the building has left
def now(what):
    return int(re.search(what + r":\\s*(\\d+)", Path("/proc/self/status").read_text())[1])
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
before = now("VmRSS")
one(); one()
print(peer.name)
print(now("VmHWM") - before)
"""


def added(size: Size, kind: str, place: int) -> dict[str, Any]:
    """Return what two training steps of one peer add to the memory of a process of its own."""
    code = PEAK.format(size=vars(size), kind=kind, place=place)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    name, kilobytes = done.stdout.splitlines()[-2:]
    row = {"size": size.name, "peer": name, "like": kind}
    return {**row, "megabytes": round(int(kilobytes) / 1e3)}


def memory(sizes: Sequence[Size]) -> list[dict[str, Any]]:
    """Return what training steps add for every peer; only Linux says it, elsewhere: nothing."""
    rows = []
    for size in sizes if sys.platform == "linux" else ():
        for kind, makers in PEERS.items():
            for place in range(len(makers)):
                rows.append(added(size, kind, place))
                print(rows[-1], flush=True)
    return rows


def machine() -> dict[str, Any]:
    """Say what was measured on, without naming the machine."""
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
    return {
        "processor": names[0].split(": ")[1] if names else platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def main() -> None:
    """Measure everything and store it."""
    parser = argparse.ArgumentParser(prog="python -m book.tools.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run?")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the file to write")
    asked = parser.parse_args()
    sizes, rounds = (TINY, 3) if asked.quick else (SIZES, 15)
    growing = {"n_layers": (1, 2)} if asked.quick else GROWING
    results = {
        "machine": machine(),
        "ratios": compare(sizes, rounds),
        "share": share_of_product(sizes, rounds),
        "growth": growth(rounds, growing),
        "memory": memory(() if asked.quick else sizes[-1:]),
    }
    asked.out.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    run_command(main)
