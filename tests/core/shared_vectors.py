"""The hand-checked cases that lie beside the repository; where they are absent their tests are skipped."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

# Tests may read the environment; the product reads it in one place only.
SHARED = Path(os.environ.get("AUTELLIX_SHARED", Path(__file__).parents[3] / "shared"))


def load(name: str) -> Any:
    """Return a file of vectors, or skip the test."""
    path = SHARED / "vectors" / name
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    return json.loads(path.read_text())


def entries(name: str, section: str) -> list[Any]:
    """Return a list of cases to parametrise a test with; empty, which skips the test, where absent."""
    path = SHARED / "vectors" / name
    return list(json.loads(path.read_text())[section]) if path.is_file() else []


FIG9 = {
    "fcfs": ("fcfs", [2, 4, 8]),
    "mlfq(2,4,8)": ("mlfq", [2, 4, 8]),
    "plas(2,4,8)": ("plas", [2, 4, 8]),
    "atlas(2,4,8)": ("atlas", [2, 4, 8]),
    "atlas(1,2,4,8)": ("atlas", [1, 2, 4, 8]),
}
"""Policy and bounds of each column of fig9.json."""
