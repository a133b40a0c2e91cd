"""What is computed from AIPerf's records."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks" / "others"


@pytest.fixture
def aiperf(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("aiperf")


def record(trace: str, start_s: float, end_s: float) -> dict[str, Any]:
    about = {
        "source_trace_id": trace,
        "request_start_ns": round(start_s * 1e9),
        "request_end_ns": round(end_s * 1e9),
    }
    return {"metadata": about}


def test_a_session_lasts_from_its_first_request_to_its_last_answer(aiperf: Any) -> None:
    """Records are in order of their ends; a sub-agent may end after the main agent's last answer."""
    records = [record("b", 6, 7), record("a", 5, 8), record("a", 4, 9.5), record("b", 8, 10)]
    assert aiperf.session_times(records) == {"a": 5.5, "b": 4.0}
