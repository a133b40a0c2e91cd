"""What is computed from AIPerf's records."""

from __future__ import annotations

import importlib
import json
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


def test_figures_are_seconds_of_the_summary_and_of_the_sessions(aiperf: Any, tmp_path: Path) -> None:
    summary = [
        "Metric,avg,min,p95",
        "Request Latency (ms),1500.00,4.00,2000.00",
        "Time to First Token (ms),250.00,4.00,500.00",
        "",
        "Metric,Value",
        "Benchmark Duration (sec),9.80",
    ]
    (tmp_path / aiperf.SUMMARY).write_text("\n".join(summary), encoding="utf-8")
    (tmp_path / "sessions.json").write_text(json.dumps({"a": 1.0, "b": 2.0, "c": 6.0}), encoding="utf-8")
    assert aiperf.figures_of(tmp_path) == {
        "session, mean s": 3.0,
        "session, p95 s": pytest.approx(5.6),
        "request, mean s": 1.5,
        "first token, mean s": 0.25,
        "first token, p95 s": 0.5,
        "all sessions, s": 9.8,
    }
