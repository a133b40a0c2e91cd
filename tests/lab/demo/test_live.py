"""The main job, small, on real engines: both parts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autellix_backend.cli.main import main

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

SMALL = (
    *("--quick", "--programs", "6", "--length-scale", "0.1"),
    *("--kv-programs", "8", "--kv-blocks", "128"),
)


def test_the_demo_compares_two_policies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every program of every run is there, measured in seconds and in engine steps, and no call is lost."""
    assert main(["demo", *SMALL, "--json", "--out", str(tmp_path)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads((tmp_path / "comparison.json").read_text())
    assert (report["lost_calls"], report["errors"]) == (0, [])
    memory, slots = report["setting"]["parts"]
    assert memory["capacity_tokens_per_s"] > 0 < slots["capacity_tokens_per_s"]
    assert (memory["kv_tokens"], slots["kv_tokens"]) == (127 * 32, None)
    for load, programs in zip(report["loads"], (8, 6), strict=True):
        assert [run["policy"] for run in load["runs"]] == ["fcfs", "boost"]
        for run in load["runs"]:
            assert run["totals"]["without_receipt"] == 0
            assert len(run["outcomes"]) == programs
            assert all(outcome["latency_s"] > 0 for outcome in run["outcomes"])
            assert run["totals"]["cached_tokens"] > 0
            assert all(outcome["token_latency_steps"] > 0 for outcome in run["outcomes"])
        fcfs, boost = ({o["program"]: o["output_tokens"] for o in run["outcomes"]} for run in load["runs"])
        assert fcfs == boost
        assert "token_latency_steps" in load["ratios"]["boost"]
    assert 0 < memory["step_s"] < 1 > slots["step_s"] > 0
    assert report["targets"]
    assert "p99" in (tmp_path / "report.txt").read_text()
    assert (tmp_path / "comparison.png").read_bytes().startswith(b"\x89PNG")
