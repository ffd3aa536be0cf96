"""Find the folder that a model lies in: a path as it is, a name by way of the hub's cache."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

NAME = r"[\w.-]+(/[\w.-]+)?"  # "gpt2", "openai-community/gpt2"

CONFIG = "config.json"
TOKENS = ("tokenizer.json", "vocab.json", "merges.txt")
WEIGHTS = ("model.safetensors", "model-*.safetensors", "model.safetensors.index.json")


def find(source: str | os.PathLike[str], files: Sequence[str], revision: str | None = None) -> Path:
    """Return the folder of a model, fetched first if `source` is no folder but a name.

    A folder that exists wins over a name. Of a name only `files` are fetched (patterns as in a
    shell), and kept by `huggingface_hub` in its own cache; `revision` is a branch, tag or commit.

    Raises:
        FileNotFoundError: for a path that is no folder and no name, or a name that cannot be
            fetched.
        ValueError: for a folder with a revision.
        ModuleNotFoundError: for a name without the package that fetches it.
    """
    folder, name = Path(source), str(source)
    if folder.is_dir():
        if revision is not None:
            raise ValueError(
                f"{folder} is a folder, which has no revision {revision!r}; leave it out, or "
                "give the model's name and see that no folder is called so"
            )
        return folder
    if not re.fullmatch(NAME, name):
        raise FileNotFoundError(
            f"there is no folder {name}, and it is no name either; a name is an owner and a "
            'model, such as "openai-community/gpt2"'
        )
    way_out = f"or fetch its files by other means and give their folder ({', '.join(files)})"
    try:
        import huggingface_hub  # only names need it
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"there is no folder {name}, and fetching a model of that name needs the package "
            f"huggingface_hub: pip install huggingface_hub, {way_out}"
        ) from error
    try:
        got = huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=list(files))
    except OSError as error:  # no network, no such name, no permission: the hub's are all of it
        raise FileNotFoundError(
            f"there is no folder {name}, and no model of that name could be fetched "
            f"({type(error).__name__}: {error}); look at the name and the network, {way_out}"
        ) from error
    return Path(got)
