"""Read the tokenizer that lies beside published weights."""

import os
from typing import TYPE_CHECKING

from transformer_block.pretrained.folders import TOKENS, find

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END_OF_TEXT = "<|endoftext|>"  # GPT-2's one special token


def load_tokenizer(source: str | os.PathLike[str], *, revision: str | None = None) -> "Tokenizer":
    """Return the tokenizer of a model's folder or name, as the `tokenizers` library reads it.

    `tokenizer.json` says everything itself. Without it `vocab.json` and `merges.txt` are read as
    GPT-2's byte-level byte-pair encoding: every text is bytes first, so no text is unknown.
    `tokenizer.encode(text).ids` are a model's ids (some tokenizers put a first token before the
    text), `tokenizer.decode(ids)` is the text.

    Raises:
        FileNotFoundError: if the folder holds neither, or no such folder is found.
        ModuleNotFoundError: without the package tokenizers.
        ValueError: for a file that is not what its name says.

    Source: Radford et al. (2019), section 2.2.
    """
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "reading a tokenizer needs the package tokenizers: pip install tokenizers"
        ) from error
    folder = find(source, TOKENS, revision)
    whole, vocab, merges = (folder / name for name in TOKENS)
    try:
        if whole.is_file():
            return Tokenizer.from_file(str(whole))
        if vocab.is_file() and merges.is_file():
            tokenizer = Tokenizer(models.BPE.from_file(str(vocab), str(merges)))
            tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            tokenizer.decoder = decoders.ByteLevel()
            if tokenizer.token_to_id(END_OF_TEXT) is not None:
                tokenizer.add_special_tokens([END_OF_TEXT])
            return tokenizer
    except Exception as error:  # the library raises no narrower class
        raise ValueError(f"the tokenizer in {folder} cannot be read ({error})") from error
    raise FileNotFoundError(
        f"there is no tokenizer.json in {folder}, nor vocab.json with merges.txt; other kinds "
        "(tokenizer.model) are not read here"
    )
