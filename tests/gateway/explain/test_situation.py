"""Where open calls and their programs are."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gateway.snapshots import open_call, program, situation, snapshot, standing

from autellix_backend.gateway.explain.situation import CallState, ProgramState, Situation

RUNS = standing("p", place=1, level=1, is_running=True)
WAITS = standing("p", place=2, level=2)


@pytest.mark.parametrize(
    ("call", "told", "expected"),
    [
        (open_call("key-1"), snapshot(RUNS, WAITS), CallState.RUNNING),
        (open_call("key-2"), snapshot(RUNS, WAITS), CallState.WAITING),
        (open_call("key-3"), snapshot(RUNS, WAITS), CallState.SENT),
        (open_call("key-3"), snapshot(RUNS, WAITS, left_out=1), CallState.WAITING),
        (open_call("key-3"), None, CallState.SENT),
        (open_call("key-3", held="the queue is full"), snapshot(RUNS), CallState.HELD),
        (open_call("key-3", engine="another"), snapshot(RUNS, left_out=1), CallState.SENT),
    ],
)
def test_a_call_is_where_its_engine_says(call: Any, told: Any, expected: CallState) -> None:
    assert situation(call, told=told).state_of(call) is expected


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
    present = situation(*map(open_call, calls), told=snapshot(RUNS, WAITS))

    assert present.program_state(view) is expected


def test_of_parallel_choices_the_last_counts() -> None:
    first = standing("p", place=1, level=1, is_running=True, call_id="k")
    last = standing("p", place=9, level=1, call_id="k")
    call = open_call("k")

    assert situation(call, told=snapshot(first, last)).standing(call) == last


def test_calls_belong_to_their_programs() -> None:
    mine, other = open_call("a"), open_call("b", program_id="q")
    present = Situation((mine, other), {})

    assert present.calls_of("p") == [mine]
    assert present.calls_of("nobody") == []
