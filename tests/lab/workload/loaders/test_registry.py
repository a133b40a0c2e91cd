"""Finding a loader by name or by looking at the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autellix_lab.workload.loaders import LOADERS, detect_format, load
from autellix_lab.workload.trace import TraceError

MOONCAKE = {"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]}


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.json", '[{"conversations": []}]', "sharegpt"),
        ("a.jsonl", json.dumps(MOONCAKE), "mooncake"),
        ("a.json", '{"question": [], "involved_classes": []}\n{"x": 1}', "bfcl"),
        ("a.jsonl", '{"calls": []}', "recorded"),
        ("a.jsonl", '{"call_id": "c", "program_id": "p", "duration_s": 1.0}', "call_log"),
        ("a.json", '{\n"requests": [],\n"block_size": 64}', "claude_code"),
        ("a.jsonl", '{"requests": [], "block_size": 64}\n{"requests": []}', "claude_code"),
        ("a.jsonl", '{"session_id": "s", "round_index": 0, "input_tokens_total": 9}', "tracelab"),
        ("a.json", '{"trace_id": "t", "spans": []}', "otel"),
        ("a.jsonl", '{"resourceSpans": []}\n{"resourceSpans": []}', "otel"),
        ("a.csv", "x", "azure"),
    ],
)
def test_the_format_is_detected_from_the_file(tmp_path: Path, name: str, text: str, expected: str) -> None:
    """By its suffix or the fields of its first object."""
    (tmp_path / name).write_text(text)

    assert expected == detect_format(tmp_path / name)


def test_a_folder_is_of_its_first_files_format(tmp_path: Path) -> None:
    """An empty one is of the format whose error says what a folder holds."""
    assert detect_format(tmp_path) == "claude_code"

    (tmp_path / "b.json").write_text("[]")
    (tmp_path / "a.json").write_text('{"spans": []}')
    assert detect_format(tmp_path) == "otel"


@pytest.mark.parametrize("text", ["", "poem", "{}", "3", '{"a": 1}\n{"b"'])
def test_an_unknown_file_asks_for_its_format(tmp_path: Path, text: str) -> None:
    """The message lists all formats."""
    (tmp_path / "x.txt").write_text(text)

    with pytest.raises(TraceError, match=r"x\.txt: format is unknown; expected --format recorded\|"):
        load(tmp_path / "x.txt")


def test_a_named_format_wins(tmp_path: Path) -> None:
    """An unknown name lists the known."""
    (tmp_path / "x.txt").write_text(json.dumps(MOONCAKE))

    assert len(load(tmp_path / "x.txt", "mooncake")) == 1
    with pytest.raises(TraceError, match=f"'poem'; expected one of {', '.join(LOADERS)}"):
        load(tmp_path / "x.txt", "poem")
