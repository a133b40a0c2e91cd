"""Recorded programs as the page shows them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.page.traces import recorded_trace

from autellix_lab.report import recorded
from autellix_lab.report.recorded import ended_of, show_programs


def test_a_recorded_program_keeps_its_times_and_parents() -> None:
    [program] = recorded_trace(1)
    ended = ended_of(program)

    assert ended is not None
    last = program.calls[-1]
    assert ended.duration_s == max((call.start_s or 0) + (call.latency_s or 0) for call in program.calls)
    [found] = [call for call in ended.calls if call.start.call_id == str(last.id)]
    assert (found.start.thread_id, found.start.parents, found.began_s) == (last.thread, ("0",), last.start_s)


def test_a_program_without_times_is_left_out() -> None:
    program, *others = recorded_trace(3)
    bare = replace(program, calls=tuple(replace(call, start_s=None) for call in program.calls))
    shown = show_programs([bare, *others])

    assert ended_of(bare) is None
    assert (len(shown.rows), len(shown.timelines), shown.left_out) == (2, 2, 1)


def test_the_longest_programs_are_shown_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = recorded_trace(20)
    monkeypatch.setattr(recorded, "MAX_CALLS", 30)
    shown = show_programs(programs)

    assert sum(row["finished_calls"] for row in shown.rows) <= 30
    durations = sorted((found.duration_s for found in map(ended_of, programs) if found), reverse=True)
    assert [row["duration_s"] for row in shown.rows] == durations[: len(shown.rows)]
    assert shown.left_out == 20 - len(shown.rows)
