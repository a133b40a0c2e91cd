"""The public traces and arrivals that lie beside the repository; where absent, their tests are skipped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Tests may read the environment; the product reads it in one place only.
DATA = Path(os.environ.get("AUTELLIX_SHARED", Path(__file__).parents[4] / "shared")) / "data"


def public_traces() -> list[Path]:
    """Return the trace files to parametrise a test with; empty, which skips the test, where absent."""
    return sorted((DATA / "public").glob("*.jsonl.gz"))


def arrival_files() -> list[Path]:
    """Return the arrival files to parametrise a test with; empty, which skips the test, where absent."""
    return sorted((DATA / "arrivals").glob("*.csv.gz"))


def public_trace(name: str) -> Path:
    """Return one trace file, or skip the test."""
    path = DATA / "public" / f"{name}.jsonl.gz"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    return path
