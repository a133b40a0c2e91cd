"""Where open calls and their programs are."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gateway.snapshots import open_call, overview, program, snapshot, standing

from autellix_backend.gateway.explain.overview import OpenCallState, ProgramState

RUNS = standing("p", place=1, level=1, is_running=True)
WAITS = standing("p", place=2, level=2)


@pytest.mark.parametrize(
    ("call", "last", "expected"),
    [
        (open_call("key-1"), snapshot(RUNS, WAITS), OpenCallState.RUNNING),
        (open_call("key-2"), snapshot(RUNS, WAITS), OpenCallState.WAITING),
        (open_call("key-3"), snapshot(RUNS, WAITS), OpenCallState.SENT),
        (open_call("key-3"), snapshot(RUNS, WAITS, left_out=1), OpenCallState.WAITING),
        (open_call("key-3"), None, OpenCallState.SENT),
        (open_call("key-3", engine="another"), snapshot(RUNS, left_out=1), OpenCallState.SENT),
    ],
)
def test_a_calls_state_is_that_of_its_engines_snapshot(call: Any, last: Any, expected: OpenCallState) -> None:
    assert overview(call, last=last).call_state(call) is expected


def test_a_call_that_its_engines_queue_holds_is_queued() -> None:
    call, other = open_call("key-3"), open_call("key-4")
    present = overview(
        call, other, last=snapshot(RUNS), why_queued=lambda key: "it is full" if key == "key-3" else None
    )

    assert present.call_state(call) is OpenCallState.QUEUED
    assert present.call_state(other) is OpenCallState.SENT


@pytest.mark.parametrize(
    ("calls", "view", "expected"),
    [
        ((), program(active_calls=0), ProgramState.IDLE),
        (("key-1", "key-2"), program(), ProgramState.RUNNING),
        (("key-2",), program(), ProgramState.WAITING),
        (("key-3",), program(), ProgramState.RUNNING),
        (("key-2",), program(is_ending=True), ProgramState.ENDING),
        ((), program(), ProgramState.RUNNING),
    ],
)
def test_a_program_waits_only_if_all_its_calls_do(calls: Any, view: Any, expected: ProgramState) -> None:
    present = overview(*map(open_call, calls), last=snapshot(RUNS, WAITS))

    assert present.program_state(view) is expected


def test_of_parallel_choices_the_last_counts() -> None:
    first = standing("p", place=1, level=1, is_running=True, call_id="k")
    last = standing("p", place=9, level=1, call_id="k")
    call = open_call("k")

    assert overview(call, last=snapshot(first, last)).in_engine(call) == last
