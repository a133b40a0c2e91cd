"""Counts the tokens of a text: by an estimate without dependencies, or by a tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from autellix_backend.errors import CommandError

CountTokens = Callable[[str], int]
"""Returns the number of tokens of a text."""

BYTES_PER_TOKEN = 4
"""The estimate's assumption. English prose is close to it; code has fewer bytes per token."""

ESTIMATE = f"estimate: {BYTES_PER_TOKEN} bytes per token"
"""The estimate's name in a trace's `tokenizer` field."""


class TokenizerError(CommandError, ValueError):
    """A tokenizer that cannot be loaded; names what to install or to pass instead."""


def estimate_tokens(text: str) -> int:
    """Return the text's bytes divided by `BYTES_PER_TOKEN`, rounded up."""
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)


def load_tokenizer(name_or_path: str) -> CountTokens:
    """Return the count of a tokenizer: a tokenizer.json, the folder of a model, or a name on the model hub.

    Counts leave out the special tokens that begin and end a prompt.

    Raises:
        TokenizerError: if the library is not installed or the tokenizer cannot be read.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise TokenizerError(
            f"--tokenizer {name_or_path} needs the package tokenizers; expected `pip install tokenizers`"
        ) from error
    path = Path(name_or_path)
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        loaded = Tokenizer.from_file(str(file)) if path.exists() else Tokenizer.from_pretrained(name_or_path)
    except Exception as error:  # The library raises bare Exception for a file it cannot read.
        raise TokenizerError(
            f"--tokenizer {name_or_path} cannot be loaded: {error}; expected a tokenizer.json, a model's "
            "folder or a name on the model hub"
        ) from error
    return lambda text: len(loaded.encode(text, add_special_tokens=False).ids)
