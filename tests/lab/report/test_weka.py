"""Programs as weka traces: what our own loader of them reads back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.lab.report.traces import recorded_trace

from autellix_lab.report.weka import BLOCK_TOKENS, weka_session
from autellix_lab.workload.loaders.base import LoadOptions
from autellix_lab.workload.loaders.claude_code import load_claude_code
from autellix_lab.workload.trace import CallTrace, ProgramTrace


def read_back(program: ProgramTrace, folder: Path) -> ProgramTrace:
    (folder / "trace.json").write_text(json.dumps(weka_session(program)))
    (found,) = load_claude_code(folder, LoadOptions())
    return found


def shape(program: ProgramTrace) -> list[tuple[object, ...]]:
    """Return its calls in order of time, which is that of the format."""
    return sorted(
        (call.start_s, call.latency_s, call.prefill_tokens, call.decode_tokens, len(call.parents))
        for call in program.calls
    )


@pytest.mark.parametrize("number", range(6))
def test_chats_and_fan_outs_are_read_back(number: int, tmp_path: Path) -> None:
    program = recorded_trace(6)[number]
    assert shape(read_back(program, tmp_path)) == shape(program)


def test_a_later_prompt_repeats_the_blocks_of_prompt_and_answer(tmp_path: Path) -> None:
    first = CallTrace(
        id=0, parents=(), thread="0", prefill_tokens=200, decode_tokens=100, start_s=0.0, latency_s=2.0
    )
    second = CallTrace(
        id=1,
        parents=(0,),
        thread="0",
        prefill_tokens=400,
        decode_tokens=10,
        shared_prefix_tokens=300,
        prefix_from=0,
        gap_before_s=0.5,
        start_s=2.5,
        latency_s=1.0,
    )
    program = ProgramTrace(
        source="chat", program_id="p", calls=(first, second), models=("m",), system_prefix_tokens=70
    )
    session = weka_session(program)
    assert session is not None
    one, two = (request["hash_ids"] for request in session["requests"])
    assert (len(one), len(two)) == (200 // BLOCK_TOKENS, 400 // BLOCK_TOKENS)
    assert two[: len(one)] == one
    assert len(set(two)) == len(two)
    assert (session["id"], session["models"], session["system_tokens"]) == ("p", ["m"], 70)
    assert [request["model"] for request in session["requests"]] == ["m", "m"]
    assert session["requests"][1]["think_time"] == 0.5
    found = read_back(program, tmp_path)
    # The answer's blocks are in no prompt of the format: only the first prompt's count as repeated.
    assert found.calls[1].shared_prefix_tokens == 200 // BLOCK_TOKENS * BLOCK_TOKENS


def test_a_subagent_starts_at_its_time_and_has_what_aiperf_requires() -> None:
    """AIPerf and inference-perf add the marker's time to requests that seem to precede it."""
    session = weka_session(recorded_trace(1)[0])
    assert session is not None
    assert session["hash_id_scope"] == "local"
    subagents = [entry for entry in session["requests"] if entry["type"] == "subagent"]
    assert subagents
    for subagent in subagents:
        (request,) = subagent["requests"]
        assert subagent["t"] == request["t"]
        assert subagent["duration_ms"] == round(1000 * request["api_time"])
        assert (subagent["status"], subagent["models"]) == ("completed", session["models"])


def test_without_times_there_is_no_session() -> None:
    (program,) = recorded_trace(1)
    timeless = tuple(replace(call, latency_s=None) for call in program.calls)
    assert weka_session(replace(program, calls=timeless)) is None
