"""What the conversations of load generators took, from their own records of single calls."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks" / "others"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def test_a_conversation_takes_from_its_first_call_to_its_last_answer(load: Any) -> None:
    tools = load("completion")
    records = [tools.Record("a", 2.0, 3.0), tools.Record("b", 1.0, 2.0), tools.Record("a", 4.0, 8.0)]
    found = tools.completion(records)
    assert (found["conversations"], found["calls"]) == (2, 3)
    assert (found["completion_mean_s"], found["completion_p50_s"]) == (3.5, 3.5)
    assert found["call_mean_s"] == 2.0


def test_conversations_that_were_cut_off_have_no_completion(load: Any) -> None:
    tools = load("completion")
    records = [tools.Record("a", 0.0, 1.0), tools.Record("a", 1.0, 2.0), tools.Record("b", 0.0, 1.0)]
    assert tools.completion(records, calls=2)["completion_mean_s"] == 2.0
    assert tools.completion(records, calls=3) == {"conversations": 0, "calls": 3} | {
        f"call_{name}_s": 1.0 for name in ("mean", "p50", "p95", "p99")
    }


def test_records_of_each_tool_are_read(load: Any) -> None:
    record = load("completion").Record
    row = {"user_id": "3001", "launch_time": "10.5", "finish_time": "12.0", "ttft": "0.1"}
    assert load("multi_round_qa").records_of([row]) == [record("3001", 10.5, 12.0)]
    stats = {"conversation_id": "CONV_ID_1", "start_time_ms": 2000.0, "latency_ms": 500.0}
    assert load("multi_turn").records_of([stats]) == [record("CONV_ID_1", 2.0, 2.5)]
    call = {"request_start_time": 1.0, "request_end_time": 2.0, "info": {"conversation_id": "c"}}
    report = {"benchmarks": [{"requests": {"successful": [call], "errored": [{}]}}]}
    assert load("run_guidellm").records_of(report) == [record("c", 1.0, 2.0)]


def test_the_sessions_of_a_seed_begin_one_after_another(load: Any) -> None:
    tool = load("run_guidellm")
    programs = tool.programs(3, seed=1, spacing_s=2.0, max_tokens=5000)
    assert programs == tool.programs(3, seed=1, spacing_s=2.0, max_tokens=5000)
    assert [program.calls[0].start_s for program in programs] == [0.0, 2.0, 4.0]
    for program in programs:
        starts_s = [call.start_s for call in program.calls]
        assert starts_s == sorted(starts_s)


def test_commands_name_the_system_and_no_absolute_model(load: Any, tmp_path: Path) -> None:
    system = load("rig").System("vllm", "http://a:1", "http://a:1", tmp_path / "model")
    args = argparse.Namespace(
        tool=tmp_path,
        python=Path("python"),
        calls=8,
        present=2,
        rate=1.0,
        users=2,
        rounds=3,
        qps=1.0,
        shared_words=1,
        user_words=2,
        answer_tokens=3,
        time=4,
        ids=True,
    )
    for name, folders in (("bench_serve", 1), ("multi_turn", 2), ("multi_round_qa", 1)):
        command = load(name).command_of(args, system, 1, *[tmp_path] * folders)
        assert any(word.startswith("http://a:1") for word in command)
        assert str(tmp_path / "model") not in command


def test_the_summary_of_multi_turn_is_the_end_of_its_output(load: Any) -> None:
    log = "text_files=/tmp/a\n\x1b[93mStatistics summary:\x1b[0m\nruntime_sec = 54.561\nttft_ms 186.0\n"
    assert load("multi_turn").summary_of(log) == "runtime_sec = 54.561\nttft_ms 186.0\n"
