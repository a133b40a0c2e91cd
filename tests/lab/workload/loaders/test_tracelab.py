"""TraceLab's sessions as programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autellix_lab.workload.loaders.base import LoadOptions
from autellix_lab.workload.loaders.tracelab import load_tracelab
from autellix_lab.workload.trace import ProgramTrace, TraceError


def event(kind: str, second: float) -> dict[str, Any]:
    return {"event_type": kind, "timestamp": f"2026-06-01T05:40:{second:06.3f}Z"}


def call(index: int, prompt: int, cached: int, *events: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A line of the session "s"."""
    return {
        "session_id": "s",
        "round_index": index,
        "round_id": f"r{index}",
        "project": "p",
        "model": "m",
        "input_tokens_total": prompt,
        "prefix_tokens": cached,
        "newly_append_tokens": prompt - cached,
        "output_tokens": 10,
        "timing_events": list(events),
        **changes,
    }


def load(tmp_path: Path, *lines: dict[str, Any]) -> list[ProgramTrace]:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return load_tracelab(path, LoadOptions())


def test_a_session_is_a_chain_of_calls_with_gaps(tmp_path: Path) -> None:
    """A call starts with its last input and ends with its last output; what lies between is a gap."""
    (program,) = load(
        tmp_path,
        call(0, 100, 40, event("user_message", 1), event("reasoning", 4), event("tool_call", 6.5)),
        call(1, 130, 90, event("tool_result", 7), event("tool_result", 9.25), event("text", 12)),
        call(2, 200, 0, event("user_message", 40), event("text", 41), event("usage_report", 49)),
    )

    assert [call.parents for call in program.calls] == [(), (0,), (1,)]
    assert [call.kind for call in program.calls] == ["root", "tool", "human"]
    assert [call.start_s for call in program.calls] == [0.0, 8.25, 39.0]
    assert [call.latency_s for call in program.calls] == [5.5, 2.75, 1.0]
    assert [call.gap_before_s for call in program.calls] == [None, 2.75, 28.0]
    assert (program.source, program.program_id, program.group) == ("tracelab", "s", "p")
    assert (program.models, program.system_prefix_tokens, program.arrival_s) == (("m",), 40, 0.0)


def test_a_prompt_repeats_the_one_before_unless_it_is_shorter(tmp_path: Path) -> None:
    """Whatever the provider had dropped; answers count as far as the provider had them."""
    (program,) = load(
        tmp_path, call(0, 100, 0), call(1, 130, 0), call(2, 150, 138), call(3, 60, 20), call(4, 90, 500)
    )

    assert [call.shared_prefix_tokens for call in program.calls] == [0, 100, 138, 20, 70]
    assert [call.prefix_from for call in program.calls] == [None, 0, 1, 2, 3]
    assert program.system_prefix_tokens is None
    assert all(call.gap_before_s is None and call.start_s is None for call in program.calls)


def test_lines_are_ordered_and_repeated_ones_left_out(tmp_path: Path) -> None:
    """Of a file where sessions are mixed; calls without a prompt are none."""
    first, other = load(
        tmp_path,
        call(1, 120, 0, event("tool_result", 5)),
        call(0, 100, 0, event("user_message", 2)),
        call(0, 70, 0, event("user_message", 1), session_id="t", project=None),
        call(1, 120, 0, event("tool_result", 5)),
        call(2, 0, 0),
        call(0, 0, 0, session_id="empty"),
    )

    assert [call.prefill_tokens for call in first.calls] == [100, 120]
    assert (other.program_id, other.group, other.arrival_s) == ("t", "t", 0.0)
    assert first.arrival_s == 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"session_id": 3}, "session_id is 3; expected a string"),
        ({"input_tokens_total": -1}, "input_tokens_total is -1; expected zero or more"),
        (
            {"timing_events": [{"event_type": "text", "timestamp": "noon"}]},
            r"timing_events\[0\]\.timestamp is 'noon'; expected a date and time such as 2026",
        ),
    ],
)
def test_an_error_names_the_line_and_the_field(tmp_path: Path, changes: Any, message: str) -> None:
    with pytest.raises(TraceError, match=rf"trace\.jsonl, line 2: {message}"):
        load(tmp_path, call(0, 5, 0), call(1, 9, 0) | changes)
