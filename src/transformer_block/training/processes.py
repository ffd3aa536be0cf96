"""One process or several: who reads which rows, and how they agree."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from transformer_block.language_model import LanguageModel


class WorkerLost(RuntimeError):
    """Say that another process of the run is gone."""


@dataclass(frozen=True)
class World:
    """Know this process's place among all that train one model: rank 0 … size − 1."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def first(self) -> bool:
        """Say whether this process is the one that speaks and writes."""
        return self.rank == 0

    def any(self, here: bool) -> bool:
        """Say whether it is so in any process. The CPUs ask each other; no GPU waits for it."""
        if self.size == 1:
            return here
        told = torch.tensor(float(here))
        dist.all_reduce(told, dist.ReduceOp.MAX)
        return bool(told)

    def sum(self, here: Tensor) -> Tensor:
        """Return the sum over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(here)
        return here

    def first_does(self, work: Callable[[], None]) -> None:
        """Let process 0 work while the others wait; what goes wrong there is raised in all."""
        error: ValueError | OSError | None = None
        if self.first:
            try:
                work()
            except (ValueError, OSError) as raised:
                error = raised
        told = ["" if error is None else str(error) or repr(error)]
        if self.size > 1:
            dist.broadcast_object_list(told)
        if error is not None or told[0]:
            raise error or ValueError(told[0])


@contextmanager
def world(device: str = "auto") -> Iterator[World]:
    """Join the processes that torchrun has started, if it has.

    Raises:
        ValueError: if a GPU is asked for and there is none.
        WorkerLost: if another process is gone in the middle of the work.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device = 'cuda', but torch finds no GPU here; take 'auto' or 'cpu'")
    kind = "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World(device=torch.device(kind))
        return
    where = torch.device(kind)
    if kind == "cuda":
        where = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(where)
    # Numbers of a GPU go through NCCL, those of the CPU through gloo, whatever the device.
    dist.init_process_group("cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo")
    try:
        yield World(dist.get_rank(), size, where)
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and not _of_a_connection(error):
            raise
        raise WorkerLost(_what_happened(error)) from error
    finally:
        dist.destroy_process_group()


def _of_a_connection(error: RuntimeError) -> bool:
    """Say whether gloo lost its partner: it raises nothing narrower than RuntimeError."""
    said = str(error).lower()
    return "gloo" in said or "connection" in said


def _what_happened(error: RuntimeError) -> str:
    """Return the library's reason, without the line of its source and its advice."""
    reason = re.sub(r"^\[[^]]*\] ", "", str(error).splitlines()[0])
    return reason.partition(". ")[0].removesuffix(".")


def share(model: LanguageModel, world: World, parallel: str) -> nn.Module:
    """Return what is called in place of the model, so that all processes train the same one.

    DDP keeps the whole model everywhere and sums the gradients. FSDP2 keeps a slice of every
    weight, gradient and moment in each process, and puts a block together when it is needed. The
    model is made whole first, in the memory of each process's CPU.
    """
    if world.size == 1:
        return model
    if parallel == "ddp":
        return DistributedDataParallel(model)
    mesh = init_device_mesh(world.device.type, (world.size,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)  # in place
    return model


@contextmanager
def summed(called: nn.Module, last: bool) -> Iterator[None]:
    """Let processes sum their gradients after the last part of a batch, not after each."""
    if isinstance(called, DistributedDataParallel) and not last:
        with called.no_sync():
            yield
        return
    if isinstance(called, FSDPModule):
        called.set_requires_gradient_sync(last)
    yield


def whole(tensor: Tensor) -> Tensor:
    """Return a copy of a weight or moment in full, on the CPU; all processes must ask together."""
    full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.detach().cpu().clone()


def placed_as(full: Tensor, like: Tensor) -> Tensor:
    """Return a full tensor as `like` is placed: on its device, and this process's slice of it."""
    full = full.to(like.device)
    if isinstance(like, DTensor):
        return distribute_tensor(full, like.device_mesh, like.placements)
    return full
