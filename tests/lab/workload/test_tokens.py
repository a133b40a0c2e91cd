"""Counting tokens: the estimate and a tokenizer's own count."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from autellix_lab.workload.tokens import TokenizerError, estimate_tokens, load_tokenizer


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("日本", 2)])
def test_the_estimate_is_a_quarter_of_the_bytes(text: str, tokens: int) -> None:
    """It rounds up, and counts bytes rather than characters."""
    assert tokens == estimate_tokens(text)


def test_a_lone_surrogate_is_counted() -> None:
    """JSON may hold half a character, which UTF-8 cannot write."""
    assert estimate_tokens("\ud800") == 1


@pytest.mark.parametrize("given", ["file", "folder"])
def test_a_tokenizer_file_counts(tmp_path: Path, given: str) -> None:
    """A tokenizer.json or the folder that holds it."""
    pytest.importorskip("tokenizers")
    words = {"type": "WordLevel", "vocab": {"[UNK]": 0, "one": 1}, "unk_token": "[UNK]"}
    (tmp_path / "tokenizer.json").write_text(
        json.dumps({"version": "1.0", "model": words, "pre_tokenizer": {"type": "Whitespace"}})
    )
    path = tmp_path / "tokenizer.json" if given == "file" else tmp_path

    assert load_tokenizer(str(path))("one two three") == 3


def test_a_broken_tokenizer_is_named(tmp_path: Path) -> None:
    """The message says what was expected."""
    pytest.importorskip("tokenizers")
    (tmp_path / "tokenizer.json").write_text("{}")

    with pytest.raises(TokenizerError, match=r"cannot be loaded: .*; expected a tokenizer\.json"):
        load_tokenizer(str(tmp_path))


def test_a_missing_package_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library the message is the line to type."""
    monkeypatch.setitem(sys.modules, "tokenizers", None)

    with pytest.raises(TokenizerError, match="expected `pip install tokenizers`"):
        load_tokenizer("any")
