"""Print what a chapter says on any console."""

import sys

_PLAIN = {"✓": "[ok]", "✗": "[no]", "…": "..."}


def say(words: str) -> None:
    """Print the words; where the console's encoding lacks a sign, print it in ASCII or as "?"."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        words.encode(encoding)
    except UnicodeEncodeError:  # as with cp1252 on Windows
        for sign, plain in _PLAIN.items():
            words = words.replace(sign, plain)
        words = words.encode(encoding, "replace").decode(encoding)
    print(words)
