"""Replays of exported programs: what a replay kept, of its recording alone."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autellix_lab.workload.trace import CallTrace, ProgramTrace

BENCHMARKS = Path(__file__).parents[2] / "benchmarks" / "others"


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("exports")


def call(number: int, parents: tuple[int, ...], start_s: float, answer: int, thread: str = "0") -> CallTrace:
    """A call of a second, half a second after its parents."""
    return CallTrace(
        id=number,
        parents=parents,
        thread=thread,
        prefill_tokens=100,
        decode_tokens=answer,
        gap_before_s=0.5 if parents else 0.0,
        start_s=start_s,
        latency_s=1.0,
    )


CHAT = ProgramTrace(source="chat", program_id="a", calls=(call(0, (), 0, 30),), arrival_s=0.0)
FORK = ProgramTrace(
    source="fork",
    program_id="b",
    calls=(call(0, (), 0, 41), call(1, (0,), 1.5, 42), call(2, (0,), 1.5, 43, "1"), call(3, (1, 2), 3, 44)),
    arrival_s=2.0,
)


def test_a_recording_differs_in_nothing_from_itself(exports: Any) -> None:
    cells = exports.differences([CHAT, FORK], [CHAT, FORK])

    assert cells == [
        "5 of 5",
        "1.00 to 1.00",
        "4 of 4",
        "+0.00 to +0.00 s",
        "1 of 1",
        "2 of 2",
        "3 of 3",
    ]


def test_what_a_replay_lost_is_counted(exports: Any) -> None:
    """A branch that runs after the other, a join that waits for one of them, and calls of no program."""
    first, left, right, join = FORK.calls
    late = replace(right, start_s=2.5, thread="0", prefill_tokens=110, parents=())
    early = replace(join, id=2, start_s=3.1, parents=(1,))
    lone = ProgramTrace(
        source="x", program_id="x", calls=(replace(late, id=0, decode_tokens=43),), arrival_s=2.0
    )
    replay = replace(FORK, calls=(first, replace(left, prefill_tokens=95), early))

    cells = exports.differences([CHAT, FORK], [replay, lone, replace(lone, program_id="y")])

    assert cells == [
        "4 of 5, 1 more",
        "0.95 to 1.10",
        "3 of 4",
        "-0.90 to +1.00 s",
        "0 of 1",
        "0 of 2",
        "2 of 3",
    ]


def test_nothing_replayed_is_no_error(exports: Any) -> None:
    assert exports.differences([CHAT], [])[0] == "0 of 1"


def test_the_recorder_reads_on_where_it_stopped(exports: Any, tmp_path: Path) -> None:
    log = tmp_path / "calls.jsonl"
    recorder = exports.Recorder(log)
    programs = []
    for number in range(2):
        settled = {
            "call_id": f"c{number}",
            "program_id": f"p{number}",
            "thread_id": "0",
            "time": "2026-11-27T21:14:14+00:00",
            "duration_s": 1.0,
            "outcome": "ok",
            "prompt_tokens": 9,
            "output_tokens": 3,
        }
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(settled) + "\n")
        programs.append([program.program_id for program in recorder.take(f"part{number}", 1)])

    assert programs == [["p0"], ["p1"]]
    assert (tmp_path / "part1.jsonl").exists()


def test_every_tool_has_a_command_for_each_form_that_it_reads(exports: Any, tmp_path: Path) -> None:
    for form in ("weka", "otel"):
        (tmp_path / form).mkdir()
        (tmp_path / form / "trace_0001.json").write_text("{}\n")
    system = exports.rig.System("autellix", "http://g", "http://e", Path("/model"))
    tools = {name: Path(f"/bin/{name}") for name in ("inference_perf", "aiperf", "guidellm")}

    commands = exports.replays(exports.argparse.Namespace(**tools), system, tmp_path)

    assert list(commands) == [
        "inference-perf, weka",
        "inference-perf, otel",
        "AIPerf, weka",
        "GuideLLM, weka",
        "GuideLLM, otel",
    ]
    assert (tmp_path / "otel.jsonl").read_text() == "{}\n"
    data = json.loads((tmp_path / "inference-perf-otel.json").read_text())["data"]
    assert data["otel_trace_replay"]["trace_directory"] == str(tmp_path / "otel")
    nothing = exports.argparse.Namespace(inference_perf=None, aiperf=None, guidellm=None)
    assert exports.replays(nothing, system, tmp_path) == {}
