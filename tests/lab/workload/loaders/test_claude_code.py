"""Claude Code sessions as programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autellix_lab.workload.loaders.base import LoadOptions
from autellix_lab.workload.loaders.claude_code import load_claude_code
from autellix_lab.workload.trace import ProgramTrace, TraceError


def request(time_s: float, blocks: list[int], **changes: Any) -> dict[str, Any]:
    return {
        "t": time_s,
        "type": "n",
        "in": 64 * len(blocks) + 5,
        "out": 10,
        "hash_ids": blocks,
        "input_types": ["tool_result"],
        "api_time": 2.0,
        **changes,
    }


def subagent(ended_s: float, ran_s: float, name: str, *requests: dict[str, Any]) -> dict[str, Any]:
    return {
        "t": ended_s,
        "type": "subagent",
        "agent_id": name,
        "duration_ms": 1000 * ran_s,
        "requests": requests,
    }


def load(tmp_path: Path, *requests: dict[str, Any], **changes: Any) -> ProgramTrace:
    session = {
        "id": "trace_1",
        "block_size": 64,
        "tool_tokens": 90,
        "system_tokens": 10,
        "models": ["m"],
        "requests": requests,
    }
    (tmp_path / "trace_0001.json").write_text(json.dumps({**session, **changes}))
    (program,) = load_claude_code(tmp_path, LoadOptions())
    return program


def test_a_session_is_a_thread_of_calls(tmp_path: Path) -> None:
    """Prompts share whole blocks; think time is the gap."""
    program = load(
        tmp_path,
        request(0.0, [1, 2]),
        request(5.0, [1, 2, 3], think_time=1.5),
        request(9.0, [1, 9], input_types=["text"]),
    )

    assert [call.shared_prefix_tokens for call in program.calls] == [0, 128, 64]
    assert [call.prefix_from for call in program.calls] == [None, 0, 1]
    assert [call.gap_before_s for call in program.calls] == [None, 1.5, 2.0]
    assert [call.kind for call in program.calls] == ["root", "tool", "human"]
    assert (program.program_id, program.system_prefix_tokens, program.models) == ("trace_1", 100, ("m",))
    assert not program.is_parallel


def test_subagents_run_beside_each_other_and_are_joined(tmp_path: Path) -> None:
    """They start from the main call before them; the next main call waits for all of them."""
    program = load(
        tmp_path,
        request(0.0, [1]),
        subagent(20.0, 10.0, "a", request(0.0, [50, 51]), request(4.0, [50, 51, 52])),
        subagent(30.0, 20.0, "b", request(0.0, [50, 60])),
        request(40.0, [1, 2]),
    )
    by_thread = [(call.thread, call.kind, call.parents) for call in program.calls]

    assert by_thread == [
        ("main", "root", ()),
        ("a", "spawn", (0,)),
        ("a", "tool", (1,)),
        ("b", "spawn", (0,)),
        ("main", "join", (0, 2, 3)),
    ]
    assert [call.start_s for call in program.calls] == [0.0, 10.0, 14.0, 10.0, 40.0]
    assert program.calls[1].gap_before_s == 8.0
    assert program.calls[4].gap_before_s == 24.0
    assert (program.calls[3].prefix_from, program.calls[3].shared_prefix_tokens) == (1, 64)
    assert program.calls[4].prefix_from == 0


def test_a_subagent_that_still_runs_is_not_waited_for(tmp_path: Path) -> None:
    """It works in the background."""
    program = load(
        tmp_path,
        request(0.0, [1]),
        subagent(20.0, 15.0, "a", request(0.0, [50]), request(13.0, [50, 51])),
        request(8.0, [1, 2]),
        request(30.0, [1, 2, 3]),
    )

    assert [call.parents for call in program.calls] == [(), (0,), (1,), (0,), (3,)]


def test_subagents_of_published_sessions_count_from_the_session_s_start(tmp_path: Path) -> None:
    """A file of JSON lines has a session in each; its subagents' times are absolute."""
    requests = [
        request(3.0, [1]),
        subagent(6.0, 14.0, "a", request(6.0, [50]), request(11.0, [50, 51])),
        request(21.0, [1, 2]),
    ]
    lines = [{"id": name, "block_size": 64, "requests": requests} for name in ("p", "q")]
    (tmp_path / "traces.jsonl").write_text("\n".join(map(json.dumps, lines)))

    programs = load_claude_code(tmp_path / "traces.jsonl", LoadOptions())

    assert [program.program_id for program in programs] == ["p", "q"]
    assert [call.start_s for call in programs[0].calls] == [3.0, 6.0, 11.0, 21.0]
    assert [call.gap_before_s for call in programs[0].calls] == [None, 1.0, 3.0, 8.0]
    assert programs[0].calls[3].parents == (0, 2)


def test_a_streamed_request_and_its_repetition_are_one_call(tmp_path: Path) -> None:
    """Older files hold both, with the same prompt."""
    program = load(tmp_path, request(0.0, [1, 2], type="s", out=3), request(4.0, [1, 2], out=7))

    assert [call.decode_tokens for call in program.calls] == [7]


def test_a_gap_is_unknown_without_times(tmp_path: Path) -> None:
    """After a call without api_time, think_time counts from an earlier call's end."""
    program = load(
        tmp_path,
        request(0.0, [1], api_time=None),
        request(9.0, [1, 2], think_time=9.0),
        request(13.0, [1, 2, 3]),
    )

    assert [call.gap_before_s for call in program.calls] == [None, None, 2.0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"requests": 3}, r"requests is 3; expected a list"),
        ({"requests": []}, r"calls is empty"),
        (
            {"requests": [request(0.0, [1]) | {"in": "x"}]},
            r"requests\[0\]\.in is 'x'; expected a whole number",
        ),
        ({"requests": [{"t": 0.0}]}, r"requests\[0\]\.type is missing; expected a string"),
        (
            {"requests": [subagent(1.0, 1.0, "a", {"type": "n", "hash_ids": []})]},
            r"requests\[0\]\.requests\[0\]\.in is missing",
        ),
    ],
)
def test_an_error_names_the_file_and_the_field(tmp_path: Path, changes: Any, message: str) -> None:
    with pytest.raises(TraceError, match=rf"trace_0001\.json: {message}"):
        load(tmp_path, **changes)


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"holds no \*\.json; expected one file a session"):
        load_claude_code(tmp_path, LoadOptions())
