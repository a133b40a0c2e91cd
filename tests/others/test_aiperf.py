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


def test_a_session_is_a_trace_with_its_sub_agents(aiperf: Any) -> None:
    """Records are in order of their ends; a sub-agent may end after the main agent's last answer."""
    lines = [
        json.dumps(
            {
                "metadata": {
                    "source_trace_id": trace,
                    "request_start_ns": round(start_s * 1e9),
                    "request_end_ns": round(end_s * 1e9),
                }
            }
        )
        for trace, start_s, end_s in (("b", 6, 7), ("a", 5, 8), ("a", 4, 9.5), ("b", 8, 10))
    ]
    found = aiperf.completion(map(aiperf.record_of, lines))
    assert (found["conversations"], found["calls"], found["completion_mean_s"]) == (2, 4, 4.75)


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
    (tmp_path / "sessions.json").write_text(
        json.dumps({"completion_mean_s": 3.0, "completion_p95_s": 5.6}), encoding="utf-8"
    )
    assert aiperf.figures_of(tmp_path) == {
        "session, mean s": 3.0,
        "session, p95 s": 5.6,
        "request, mean s": 1.5,
        "first token, mean s": 0.25,
        "first token, p95 s": 0.5,
        "all sessions, s": 9.8,
    }
