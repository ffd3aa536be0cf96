"""Load published weights into a `ModernModel`, and write a model as others read it."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

import torch

from transformer_block.checkpoint import difference, stored
from transformer_block.config import ModelConfig
from transformer_block.language_model import LanguageModel
from transformer_block.modern import ModernConfig, ModernModel
from transformer_block.pretrained import weights
from transformer_block.pretrained.architectures import HEAD, Architecture
from transformer_block.pretrained.configs import fields, parse, written
from transformer_block.pretrained.folders import CONFIG, WEIGHTS, find
from transformer_block.pretrained.weights import StoredTensor

# As a file calls the dtypes that a model can have.
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}


def load(
    source: str | os.PathLike[str],
    *,
    dtype: torch.dtype | None = None,
    revision: str | None = None,
    ignore: Iterable[str] = (),
) -> ModernModel:
    """Return the model that lies in a folder, or goes by a name such as "openai-community/gpt2".

    The folder holds config.json and model.safetensors, or several such files with their index.
    A folder that exists wins over a name; a name is fetched by `huggingface_hub`, which keeps it
    and needs no network the next time. `ignore` is as in `read_config`.

    The model stands on the CPU and has the dtype of its files unless another is given. A weight
    that is stored as it is used stays in the mapped file until it is written to (the file itself
    is never changed); one that is stored otherwise is copied once. Nothing in a file is executed,
    and no random number is drawn.

    Raises:
        FileNotFoundError: if there is no such folder or name, or files are lacking in it.
        ValueError: naming the field that is not implemented, the tensor that is missing, unknown
            or of another shape, or the file that cannot be read.
    """
    folder = find(source, [CONFIG, *WEIGHTS], revision)
    architecture, config = parse(fields(folder), ignore)
    model = _empty(config)
    ours = stored(model)
    names = architecture.names(ours, config.n_layers)
    parts = {name: [ours[each] for each in names[name]] for name in names}
    wanted = {name: tuple(architecture.pack(name, parts[name]).shape) for name in names}
    with weights.opened(folder) as files:
        found = _without_prefix(architecture, files.values())
        if config.tie_weights:
            _drop_tied_head(architecture, found)
        _check_shapes(folder, wanted, {name: tensor.shape for name, tensor in found.items()})
        kind = _dtype(found.values(), dtype)
        filled: dict[str, torch.Tensor] = {}
        for name, tensor in found.items():
            rows = [len(part) for part in parts[name]]
            cut = architecture.unpack(name, tensor.read().to(kind), rows)
            filled |= zip(names[name], cut, strict=True)
    # Not strict only for a tied W_LM, which is E; the names were compared above.
    model.load_state_dict(filled, strict=not config.tie_weights, assign=True)
    if config.tie_weights:
        model.W_LM.weight = model.E.weight
    return model


def save(
    model: LanguageModel, folder: str | os.PathLike[str], *, max_bytes: int = 5_000_000_000
) -> None:
    """Write a model as a GPT-2 or a Llama, whichever computes the same, for other libraries.

    The folder gets config.json and model.safetensors, or several files of at most `max_bytes`
    (a larger tensor has one of its own) with their index. Each is written beside its place and
    then moved there; those of an earlier save that are not replaced are removed.

    Raises:
        ValueError: if neither architecture computes what the model does, if the model was changed
            since its config built it, or if its parameters are not all of one dtype.
        OSError: if the folder cannot be written.
    """
    architecture, values = written(model.config)
    ours = stored(model)
    wanted = {name: tuple(tensor.shape) for name, tensor in stored(_empty(model.config)).items()}
    found = {name: tuple(tensor.shape) for name, tensor in ours.items()}
    if wanted != found:
        raise ValueError(f"the model is not the one of its config: {difference(wanted, found)}")
    dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in ours.values()}
    if len(dtypes) > 1:
        raise ValueError(
            f"a model's files hold one dtype, but the parameters have {sorted(dtypes)}; convert "
            "first, as in model.float()"
        )
    names = {
        architecture.in_file(name): (name, parts)
        for name, parts in architecture.names(ours, model.config.n_layers).items()
    }

    def packed(key: str) -> torch.Tensor:
        name, parts = names[key]
        return architecture.pack(name, [ours[each] for each in parts]).contiguous()

    sizes = {key: sum(ours[each].nbytes for each in parts) for key, (_, parts) in names.items()}
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights.write(folder, sizes, packed, max_bytes)
    weights.write_json(folder / CONFIG, values | {"torch_dtype": dtypes.pop()})


def _empty(config: ModelConfig) -> ModernModel:
    """Build the model without numbers: none is drawn, and no memory is taken."""
    modern = config if isinstance(config, ModernConfig) else ModernConfig(**asdict(config))
    with torch.device("meta"):
        return ModernModel(modern)


def _without_prefix(
    architecture: Architecture, tensors: Iterable[StoredTensor]
) -> dict[str, StoredTensor]:
    """Return the weights by their names without the prefix; what is only computed is left out."""
    found: dict[str, StoredTensor] = {}
    for tensor in tensors:
        name = tensor.key.removeprefix(architecture.prefix)
        if name.endswith(architecture.computed):
            continue
        if name in found:
            raise ValueError(
                f"{tensor.path} holds {found[name].key} and {tensor.key}, which is one"
            )
        found[name] = tensor
    return found


def _drop_tied_head(architecture: Architecture, found: dict[str, StoredTensor]) -> None:
    """Leave out the W_LM of a tied model, once it is seen to be E."""
    E = next(name for name, ours in architecture.modules.items() if ours == ("E",)) + ".weight"
    head, embedding = found.pop(HEAD, None), found.get(E)
    if head is None or embedding is None:
        return
    same = (head.shape, head.dtype) == (embedding.shape, embedding.dtype)
    # as bytes, because NaN is no equal of itself
    if not same or not torch.equal(*(each.read().view(torch.uint8) for each in (head, embedding))):
        raise ValueError(
            f"tie_word_embeddings says that {head.key} is {embedding.key}, but they differ; if "
            "both were trained, set it to false in config.json"
        )


def _check_shapes(
    folder: Path, wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]
) -> None:
    if wanted == found:
        return
    turned = [
        name
        for name in sorted(wanted.keys() & found.keys())
        if wanted[name] != found[name] and wanted[name] == found[name][::-1]
    ]
    hint = f"; {turned[0]} may be transposed" if turned else ""
    raise ValueError(
        f"the weights in {folder} do not fit its {CONFIG}: {difference(wanted, found)}{hint}"
    )


def _dtype(tensors: Iterable[StoredTensor], wanted: torch.dtype | None) -> torch.dtype:
    """Return the dtype that is wanted, or else the one that all tensors have."""
    if wanted is not None and wanted not in DTYPES.values():
        raise ValueError(f"a model's dtype is one of {list(DTYPES.values())}, not {wanted}")
    one = {tensor.dtype: tensor for tensor in tensors}
    for dtype, tensor in one.items():
        if dtype not in DTYPES:
            raise ValueError(
                f"{tensor.key} in {tensor.path} is stored as {dtype}, but weights are read as "
                f"{', '.join(DTYPES)}; take those from which these were made"
            )
    if wanted is not None:
        return wanted
    if len(one) > 1:
        each = ", ".join(f"{tensor.key} is {dtype}" for dtype, tensor in sorted(one.items()))
        raise ValueError(
            f"the weights have more than one dtype: {each}; say which the model shall have, as in "
            "load(..., dtype=torch.float32)"
        )
    return DTYPES[next(iter(one))]
