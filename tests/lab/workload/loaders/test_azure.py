"""The Azure trace as programs of one call."""

from __future__ import annotations

from pathlib import Path

from autellix_lab.workload.loaders.azure import load_azure
from autellix_lab.workload.loaders.base import LoadOptions


def test_each_row_is_a_program(tmp_path: Path) -> None:
    """Its arrival is counted from the first; an empty prompt has one token."""
    path = tmp_path / "code.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,48,10\n2023-11-16 18:17:05,0,8\n"
    )

    first, second = load_azure(path, LoadOptions())

    assert (first.program_id, first.arrival_s, second.arrival_s) == ("code_0", 0.0, 2.0)
    assert (first.calls[0].prefill_tokens, first.calls[0].decode_tokens) == (48, 10)
    assert second.calls[0].prefill_tokens == 1
