"""Programs as OpenTelemetry traces: what our own loader of them reads back, and what messages they hold."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.lab.report.traces import recorded_trace

from autellix_lab.report.otel import otel_trace
from autellix_lab.workload.generate import generate_programs
from autellix_lab.workload.loaders.base import LoadOptions
from autellix_lab.workload.loaders.otel import load_otel
from autellix_lab.workload.trace import CallTrace, ProgramTrace, TraceError


def read_back(programs: Sequence[ProgramTrace], folder: Path) -> list[ProgramTrace]:
    for number, program in enumerate(programs):
        (folder / f"trace_{number}.json").write_text(json.dumps(otel_trace(program)))
    return load_otel(folder, LoadOptions())


def shape(program: ProgramTrace) -> list[tuple[object, ...]]:
    """Return its calls in order of time, parents by their own start."""
    return sorted(
        (
            round(call.start_s or 0.0, 3),
            round(call.latency_s or 0.0, 3),
            round(call.gap_before_s or 0.0, 3),
            call.thread,
            call.prefill_tokens,
            call.decode_tokens,
            call.shared_prefix_tokens,
            sorted(round(program.calls[parent].start_s or 0.0, 3) for parent in call.parents),
        )
        for call in program.calls
    )


def played(program: ProgramTrace) -> ProgramTrace:
    """Return a generated program with the times of one that has run, a second each call."""
    ends: list[float] = []
    calls = []
    for call in program.calls:
        ready_s = max((ends[parent] for parent in call.parents), default=0.0)
        start_s = ready_s + (call.gap_before_s or 0.0)
        ends.append(start_s + 1.0)
        calls.append(replace(call, start_s=start_s, latency_s=1.0, gap_before_s=call.gap_before_s or 0.0))
    return replace(program, calls=tuple(calls), arrival_s=2.0)


def prompt(span: dict[str, Any]) -> list[tuple[str, str]]:
    messages = json.loads(span["attributes"]["gen_ai.input.messages"])
    return [(message["role"], message["parts"][0]["content"]) for message in messages]


def answer(span: dict[str, Any]) -> str:
    (message,) = json.loads(span["attributes"]["gen_ai.output.messages"])
    text: str = message["parts"][0]["content"]
    return text


def chat(*calls: CallTrace) -> list[dict[str, Any]]:
    """Return the spans of the calls of a program."""
    trace = otel_trace(ProgramTrace(source="chat", program_id="p", calls=calls))
    assert trace is not None
    spans: list[dict[str, Any]] = trace["spans"][1:]
    return spans


def call(number: int, parents: tuple[int, ...], prompt: int, answer: int, shared: int = 0) -> CallTrace:
    return CallTrace(
        id=number,
        parents=parents,
        thread="main",
        prefill_tokens=prompt,
        decode_tokens=answer,
        shared_prefix_tokens=shared,
        prefix_from=parents[0] if shared else None,
        start_s=2.0 * number,
        latency_s=1.0,
    )


def test_recorded_programs_are_read_back(tmp_path: Path) -> None:
    programs = recorded_trace(6)
    found = read_back(programs, tmp_path)
    assert list(map(shape, found)) == list(map(shape, programs))
    assert [each.arrival_s for each in found] == [each.arrival_s for each in programs]
    assert [(each.program_id, each.source) for each in found] == [
        (each.program_id, each.source) for each in programs
    ]


@pytest.mark.parametrize("kind", ["chat", "react", "tools", "coding", "map_reduce"])
def test_generated_programs_are_read_back(kind: str, tmp_path: Path) -> None:
    programs = [played(program) for program in generate_programs(kind, 3, seed=2)]
    found = read_back(programs, tmp_path)
    assert [sorted(map(str, shape(each))) for each in found] == [
        sorted(map(str, shape(each))) for each in programs
    ]
    assert [each.system_prefix_tokens for each in found] == [each.system_prefix_tokens for each in programs]


@pytest.mark.parametrize("kind", ["react", "tools", "map_reduce", "tree"])
def test_prompts_have_a_word_for_each_token(kind: str) -> None:
    """And their roles alternate, as templates want."""
    for program in generate_programs(kind, 2, seed=3):
        trace = otel_trace(played(program))
        assert trace is not None
        for found, span in zip(program.calls, trace["spans"][1:], strict=True):
            messages = prompt(span)
            assert sum(len(text.split()) for _, text in messages) == found.prefill_tokens
            roles = [role for role, _ in messages]
            assert all(left != right for left, right in itertools.pairwise(roles))
            assert roles[0] != "assistant"


def test_a_later_prompt_repeats_prompt_and_answer() -> None:
    """A recorded prefix ends with a block of the cache; the answer is repeated whole."""
    first, second = chat(call(0, (), 100, 30), call(1, (0,), 200, 5, shared=128))
    (opening,) = prompt(first)
    assert prompt(second)[:2] == [opening, ("assistant", answer(first))]
    assert second["attributes"]["gen_ai.usage.cache_read.input_tokens"] == 128


def test_a_prefix_may_end_inside_a_prompt() -> None:
    first, second = chat(call(0, (), 100, 30), call(1, (0,), 120, 5, shared=64))
    ((_, opening),) = prompt(first)
    words = prompt(second)[0][1].split()
    assert words == opening.split()[:64]
    assert prompt(second)[1] == ("assistant", answer(first))


def test_an_answer_without_room_is_left_out() -> None:
    first, second, third = chat(call(0, (), 100, 30), call(1, (0,), 110, 5, shared=110), call(2, (0,), 9, 1))
    assert [role for role, _ in prompt(second)] == ["user"]
    assert [role for role, _ in prompt(third)] == ["user"]
    assert first["attributes"]["autellix.call.id"] in third["attributes"]["autellix.parent.ids"]


def test_an_empty_answer_is_no_message() -> None:
    first, second = chat(call(0, (), 10, 0), call(1, (0,), 30, 5, shared=10))
    assert "gen_ai.output.messages" not in first["attributes"]
    assert [role for role, _ in prompt(second)] == ["user"]


def test_programs_of_one_source_share_a_system_prompt() -> None:
    one, two = (
        ProgramTrace(source="s", program_id=name, calls=(call(0, (), 50, 5),), system_prefix_tokens=50)
        for name in "ab"
    )
    systems = []
    for program in (one, two):
        trace = otel_trace(program)
        assert trace is not None
        (role, system), (_, last) = prompt(trace["spans"][1])
        assert (role, len(system.split()), len(last.split())) == ("system", 49, 1)
        systems.append(system)
    assert systems[0] == systems[1]


def test_spans_are_those_that_inference_perf_reads() -> None:
    """Also the model's name, and a file's session."""
    program = replace(recorded_trace(1)[0], models=("m",), arrival_s=1.5)
    trace = otel_trace(program)
    assert trace is not None
    root, first, *_ = trace["spans"]
    assert (trace["session_id"], trace["span_count"]) == ("program-0", len(program.calls) + 1)
    assert (root["name"], root["parent_span_id"]) == ("invoke_agent tree", None)
    assert (first["name"], first["parent_span_id"]) == ("chat m", root["span_id"])
    assert root["start_time"] == "1970-01-01T00:00:01.500000+00:00"
    assert {span["trace_id"] for span in trace["spans"]} == {trace["trace_id"]}
    assert len({span["span_id"] for span in trace["spans"]}) == len(trace["spans"])


def test_without_times_there_is_no_trace() -> None:
    (program,) = recorded_trace(1)
    timeless = tuple(replace(call, latency_s=None) for call in program.calls)
    assert otel_trace(replace(program, calls=timeless)) is None


def test_an_arrival_without_a_date_is_refused() -> None:
    (program,) = recorded_trace(1)
    with pytest.raises(TraceError, match=r"arrival_s is 1000000000000000\.0 in 'program-0'"):
        otel_trace(replace(program, arrival_s=1e15))
