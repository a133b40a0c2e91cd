"""What is read from inference-perf's reports, and what it is told."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks" / "others"


@pytest.fixture
def inference_perf(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("inference_perf")


def test_figures_are_seconds_of_both_reports(inference_perf: Any, tmp_path: Path) -> None:
    latency = {
        "request_latency": {"mean": 1.5, "p95": 2.0},
        "time_to_first_token": {"mean": 0.25, "p95": 0.5},
    }
    calls = {"benchmark_time_seconds": 9.8, "successes": {"latency": latency}}
    sessions = {"session_duration_sec": {"mean": 3.0, "p95": 5.6}}
    for name, report in zip(inference_perf.REPORTS, (calls, sessions), strict=True):
        (tmp_path / name).write_text(json.dumps(report), encoding="utf-8")
    assert inference_perf.figures_of(tmp_path) == {
        "session, mean s": 3.0,
        "session, p95 s": 5.6,
        "request, mean s": 1.5,
        "first token, mean s": 0.25,
        "first token, p95 s": 0.5,
        "all sessions, s": 9.8,
    }


@pytest.mark.parametrize(("kind", "keeps_answers"), [("otel", True), ("weka", None)])
def test_recorded_answers_are_sent_where_the_tool_can(
    inference_perf: Any, kind: str, keeps_answers: bool | None
) -> None:
    system = inference_perf.rig.System("vllm", "http://a", "http://a", Path("/model"))
    about = inference_perf.configuration(system, Path("/traces"), kind, Path("/reports"), 1, 10)
    assert about["data"]["type"] == f"{kind}_trace_replay"
    replay = about["data"][f"{kind}_trace_replay"]
    assert replay.get("disable_output_substitution") is keeps_answers
