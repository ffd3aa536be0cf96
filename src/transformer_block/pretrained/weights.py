"""Open and write files of weights: one, or several with their index; safetensors only."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from transformer_block.checkpoint import beside
from transformer_block.pretrained.folders import WEIGHTS

ONE_FILE, SHARDS, INDEX = WEIGHTS


@dataclass(frozen=True)
class StoredTensor:
    """Stand for a tensor in an open file: what it is, and its numbers when they are asked for."""

    key: str
    path: Path
    _opened: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """Return its shape, without reading a number."""
        return tuple(self._opened.get_slice(self.key).get_shape())

    @property
    def dtype(self) -> str:
        """Return its dtype as the file calls it, such as "F32"."""
        return str(self._opened.get_slice(self.key).get_dtype())

    def read(self) -> Tensor:
        """Return its numbers; its memory is the file's own, copied where it is written to."""
        return self._opened.get_tensor(self.key)


@contextmanager
def opened(folder: Path) -> Iterator[dict[str, StoredTensor]]:
    """Open the weights in a folder, by name.

    Raises:
        FileNotFoundError: if there are none, or a file that the index names is lacking.
        ValueError: if a file cannot be read, or the index and a file do not agree.
    """
    if (folder / ONE_FILE).is_file():
        where = None
        paths = [folder / ONE_FILE]
    elif (folder / INDEX).is_file():
        where = _index(folder / INDEX)
        paths = [folder / file for file in sorted(set(where.values()))]
    else:
        raise FileNotFoundError(_no_weights(folder))
    with ExitStack() as stack:
        found: dict[str, StoredTensor] = {}
        for path in paths:
            if not path.is_file():
                raise FileNotFoundError(f"{INDEX} names {path.name}, which is not in {folder}")
            try:
                file = stack.enter_context(safe_open(path, framework="pt"))
            except SafetensorError as error:
                raise ValueError(
                    f"{path} is not a safetensors file, or is cut short ({error}); fetch it again"
                ) from error
            here = {key: StoredTensor(key, path, file) for key in file.keys()}  # noqa: SIM118 (not a dict)
            if where is not None:
                promised = {key for key, name in where.items() if name == path.name}
                if odd := sorted(promised ^ here.keys()):
                    raise ValueError(
                        f"{INDEX} and {path.name} do not agree on {', '.join(odd[:3])}; fetch "
                        "both again"
                    )
            found |= here
        yield found


def write(
    folder: Path, sizes: Mapping[str, int], tensor: Callable[[str], Tensor], max_bytes: int
) -> None:
    """Write tensors, whose sizes in bytes are known, to one file or to several with an index.

    `tensor` makes each of them when its file is written, so that no more than one file's stand
    in memory twice. Files of an earlier writing that are not replaced are removed.
    """
    shards = _shards(sizes, max_bytes)
    files = [ONE_FILE]
    if len(shards) > 1:
        files = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    where: dict[str, str] = {}
    for file, shard in zip(files, shards, strict=True):
        with beside(folder / file) as draft:
            save_file({key: tensor(key) for key in shard}, draft, {"format": "pt"})
        where |= dict.fromkeys(shard, file)
    if len(shards) > 1:
        metadata = {"total_size": sum(sizes.values())}
        write_json(folder / INDEX, {"metadata": metadata, "weight_map": where})
        files.append(INDEX)
    for old in [folder / ONE_FILE, folder / INDEX, *folder.glob(SHARDS)]:
        if old.name not in files:
            old.unlink(missing_ok=True)


def write_json(path: Path, content: object) -> None:
    """Write JSON that a person can read, whole or not at all."""
    with beside(path) as draft:
        draft.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _shards(sizes: Mapping[str, int], max_bytes: int) -> list[list[str]]:
    """Fill files with tensors, in order, as long as they fit; a larger one has its own."""
    shards: list[list[str]] = [[]]
    filled = 0
    for key, size in sizes.items():
        if shards[-1] and filled + size > max_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(key)
        filled += size
    return shards


def _index(index: Path) -> dict[str, str]:
    """Return the name of each tensor → the name of its file."""
    try:
        where = json.loads(index.read_text("utf-8"))["weight_map"]
        beside = all(Path(file).name == file for file in where.values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{index} holds no weight_map that can be read ({error!r})") from error
    if not beside:
        raise ValueError(f"{index} must name files that lie beside it, and no other")
    return where


def _no_weights(folder: Path) -> str:
    lacking = f"there is no {ONE_FILE} in {folder}, nor {INDEX}"
    if not (pickles := sorted(path.name for path in folder.glob("*.bin"))):
        return lacking
    return (
        f"{lacking}; {pickles[0]} is a pickle, which can run any code when it is read, so it is "
        f'not read here. To convert one: weights = torch.load("{pickles[0]}", weights_only=True); '
        "safetensors.torch.save_file({name: tensor.clone() for name, tensor in "
        f'weights.items()}}, "{ONE_FILE}")'
    )
