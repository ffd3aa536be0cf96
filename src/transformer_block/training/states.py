"""The whole state of a long training on disk: written whole or not at all, read back exactly."""

import json
import os
import re
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialise
from torch import Tensor

from transformer_block.training.plan import Plan, plan_from

FORMAT = "transformer_block.training"
VERSION = "1"  # to be raised when a field or a tensor's name changes its meaning
KEEP = 2  # the newest, and one to fall back on should the newest be damaged
_OURS = re.compile(r"step-(\d{9})\.safetensors")


@dataclass
class State:
    """Hold all that decides how a training goes on after so many steps.

    The batches are a function of the seed and the step, and the model draws no random numbers:
    so there is no state of a generator to keep.
    """

    plan: Plan
    digest: str  # of what is read
    step: int  # how many are done
    weights: dict[str, Tensor]  # a tied one once
    first_moments: dict[str, Tensor]  # of AdamW, by the weight's name
    second_moments: dict[str, Tensor]
    losses: Float[Tensor, "step 2"]  # loss and length of the gradient, at each step
    judged: Float[Tensor, "times 2"]  # step and the data's measure


def write(state: State, folder: Path) -> Path:
    """Write a state beside its place, bring it to the disk, move it there; keep the newest two.

    Raises:
        OSError: if it cannot be written, as on a full disk; what was there before still is.
    """
    groups = {
        "weights": state.weights,
        "first moments": state.first_moments,
        "second moments": state.second_moments,
    }
    tensors = {f"{group}/{name}": t for group, all_ in groups.items() for name, t in all_.items()}
    tensors |= {"losses": state.losses, "judged": state.judged}
    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "plan": json.dumps(asdict(state.plan)),
        "digest": state.digest,
        "step": str(state.step),
    }
    path = folder / f"step-{state.step:09d}.safetensors"
    write_whole(path, serialise({n: t.contiguous() for n, t in tensors.items()}, metadata))
    for old in stored(folder)[KEEP:]:
        old.unlink(missing_ok=True)
    return path


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that after any crash it is there as before, or there in full.

    Raises:
        OSError: if it cannot be written; nothing half-written is left.
    """
    part = path.with_suffix(".part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    if os.name == "posix":  # elsewhere a folder cannot be opened
        place = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(place)  # else a power cut might undo the move
        finally:
            os.close(place)


def stored(folder: Path) -> list[Path]:
    """Return the states in a folder, the newest first."""
    found = [path for path in folder.iterdir() if _OURS.fullmatch(path.name)]
    return sorted(found, key=lambda path: path.name, reverse=True)


def newest(folder: Path) -> tuple[State | None, list[str]]:
    """Return the newest state that can be read, and what is wrong with those that cannot.

    Raises:
        ValueError: if there are states and none can be read.
    """
    faults: list[str] = []
    for path in stored(folder):
        try:
            return read(path), faults
        except (OSError, ValueError) as error:
            faults.append(f"{path.name} cannot be read ({error})")
    if faults:
        raise ValueError(
            f"no checkpoint in {folder} can be read: {'; '.join(faults)}; --fresh begins again"
        )
    return None, []


def read(path: Path) -> State:
    """Return the state in a file.

    Raises:
        ValueError: if it is none of `write`'s, cut short, or of another version.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise ValueError(f"not a safetensors file, or cut short: {error}") from error
    if (metadata.get("format"), metadata.get("version")) != (FORMAT, VERSION):
        raise ValueError(
            f"of format {metadata.get('format')!r} version {metadata.get('version')!r}, "
            f"not {FORMAT!r} version {VERSION!r}"
        )
    groups: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        group, _, name = key.partition("/")
        groups.setdefault(group, {})[name] = tensor
    return State(
        plan_from(json.loads(metadata["plan"]), path.name),
        metadata["digest"],
        int(metadata["step"]),
        groups["weights"],
        groups["first moments"],
        groups["second moments"],
        tensors["losses"],
        tensors["judged"],
    )
