"""Keep a trained model in one file: its weights and its config, and nothing that can run."""

import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialise
from torch import Tensor, nn

from transformer_block.config import ModelConfig
from transformer_block.language_model import LanguageModel, standard_block
from transformer_block.modern import ModernConfig, ModernModel
from transformer_block.rotary import Stretch

FORMAT = "transformer_block"
VERSION = "1"  # to be raised when a field or a parameter's name changes its meaning


def save(model: LanguageModel, path: str | os.PathLike[str]) -> None:
    """Write weights and config to one safetensors file, whole or not at all.

    The config stands as JSON in the file's metadata. A tied W_LM is E and is written once. The
    file is written beside its place and then moved there, so a crash leaves the old one intact.

    Raises:
        ValueError: if the parameters are not all of one dtype.
        OSError: if the folder does not exist or cannot be written.
    """
    path = Path(path)
    tensors = stored(model)
    if len(dtypes := {tensor.dtype for tensor in tensors.values()}) > 1:
        raise ValueError(
            f"a file holds one dtype, but the parameters have {sorted(map(str, dtypes))}; "
            "convert first, as in model.float()"
        )
    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "config": json.dumps(asdict(model.config), sort_keys=True),
    }
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} to write {path.name} into")
    with beside(path) as draft:
        draft.write_bytes(serialise(tensors, metadata))


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """Give a file to write beside its place, and move it there when it is whole."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def load(
    path: str | os.PathLike[str],
    *,
    block: Callable[[ModelConfig], nn.Module] = standard_block,
) -> LanguageModel:
    """Build the model a file describes and fill in its weights, every one and no other.

    `block` is what the model's blocks were built by: a file does not hold it, since it is code.
    The file of a `ModernModel` gives one back, with the blocks that its config asks for.

    The model stands on the CPU and has the dtype of the file. The global random state is left
    alone. Nothing in the file is executed.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not one of `save`'s files, if its config and weights do not fit, or
            if `block` is given for a `ModernModel`.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint at {path}; save(model, path) writes one")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise ValueError(
            f"{path} is not a safetensors file, or is cut short ({error}); write it again with save"
        ) from error
    config = _config(path, metadata)
    with torch.random.fork_rng(devices=[]):  # the first weights are drawn only to be replaced
        model = _untrained(config, block)
    wanted = {name: tuple(tensor.shape) for name, tensor in stored(model).items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if wanted != found:
        raise ValueError(f"{path} does not fit its config: {difference(wanted, found)}")
    dtypes = {tensor.dtype for tensor in tensors.values()}
    dtype = dtypes.pop()
    if dtypes or not dtype.is_floating_point:
        raise ValueError(
            f"{path} does not fit its config: a model has one floating-point dtype, "
            f"not {sorted(map(str, {dtype, *dtypes}))}"
        )
    model.to(dtype)
    # Not strict only for a tied W_LM, which is E; the names were compared above.
    model.load_state_dict(tensors, strict=not config.tie_weights)
    return model


def stored(model: LanguageModel) -> dict[str, Tensor]:
    """Return the tensors that a file holds, by name: every parameter, a shared one once."""
    tensors = {name: t.detach().contiguous() for name, t in model.state_dict().items()}
    if model.config.tie_weights:
        del tensors["W_LM.weight"]
    return tensors


def _config(path: Path, metadata: dict[str, str]) -> ModelConfig:
    if metadata.get("format") != FORMAT or metadata.get("version") != VERSION:
        raise ValueError(
            f"{path} is a safetensors file, but of format {metadata.get('format')!r} version "
            f"{metadata.get('version')!r}, not {FORMAT!r} version {VERSION!r}"
        )
    try:
        values = json.loads(metadata["config"])
    except (KeyError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} holds no config that can be read ({error!r})") from error
    given = set(values) if isinstance(values, dict) else set()
    plain, modern = ({field.name for field in fields(c)} for c in (ModelConfig, ModernConfig))
    known = modern if given & (modern - plain) else plain
    if given != known:
        raise ValueError(
            f"the config in {path} has unknown fields {sorted(given - known)} and lacks "
            f"{sorted(known - given)}; was it written by another version of this package?"
        )
    if known == plain:
        return ModelConfig(**values)
    if values["stretch"] is not None:
        try:
            values["stretch"] = Stretch(**values["stretch"])
        except TypeError as error:
            raise ValueError(f"{path} holds no config that can be read ({error!r})") from error
    return ModernConfig(**values)


def _untrained(config: ModelConfig, block: Callable[[ModelConfig], nn.Module]) -> LanguageModel:
    if not isinstance(config, ModernConfig):
        return LanguageModel(config, block=block)
    if block is not standard_block:
        raise ValueError("a ModernModel builds its blocks by its own config; leave block out")
    return ModernModel(config)


def difference(
    wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]], show: int = 3
) -> str:
    """Say which tensors are missing, unknown or of another shape, the first `show` by name."""
    lines = [f"{name} is missing" for name in wanted.keys() - found.keys()]
    lines += [f"{name} is unknown" for name in found.keys() - wanted.keys()]
    lines += [
        f"{name} is {list(found[name])}, not {list(wanted[name])}"
        for name in wanted.keys() & found.keys()
        if wanted[name] != found[name]
    ]
    more = f"; and {len(lines) - show} more" if len(lines) > show else ""
    return "; ".join(sorted(lines)[:show]) + more
