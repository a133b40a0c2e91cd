"""Where open calls and their programs are."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gateway.engine_reports import report_of
from tests.gateway.snapshots import ENGINE, NOW, engine, open_call, overview, program, snapshot, standing
from tests.observe.settled_calls import settled_call

from autellix_backend.console.explain.overview import Overview, gateway_of
from autellix_backend.observe.states import EnginePhase, ProgramState
from autellix_backend.reports.snapshot import (
    AdmissionSnapshot,
    DemandSnapshot,
    EngineSnapshot,
    ParkedSnapshot,
    PresentPrograms,
)

MEMORY, SLOT = ProgramState.WAITING_FOR_MEMORY, ProgramState.WAITING_FOR_SLOT
IN_ENGINE, BETWEEN = ProgramState.IN_ENGINE, ProgramState.BETWEEN_CALLS
RUNS = standing("p", place=1, level=1, is_running=True)
WAITS = standing("p", place=2, level=2)
PARKED = ParkedSnapshot(1, 500, 5000, 0, 0)
INACTIVE = standing("p", place=3, level=1, is_admitted=False, context_tokens=900, inactive_place=1)


def states(present: Overview) -> list[ProgramState]:
    return [present.call_state(call) for call in present.calls_of("p")]


def with_memory(*calls: Any, used: int = 900, **fields: Any) -> EngineSnapshot:
    """Return a snapshot of an engine with room for 1,000 tokens; `idle` is active without a call."""
    inactive = sum(call.inactive_place is not None for call in calls)
    return snapshot(
        *calls,
        admission=AdmissionSnapshot(2, inactive, used, 1000),
        demand=DemandSnapshot(400 * inactive, inactive, 1.0, ("idle",)),
        **fields,
    )


@pytest.mark.parametrize(
    ("key", "last", "expected"),
    [
        ("key-1", snapshot(RUNS, WAITS), IN_ENGINE),
        ("key-2", snapshot(RUNS, WAITS), SLOT),
        ("key-3", snapshot(RUNS, WAITS, INACTIVE), MEMORY),
        ("key-2", snapshot(RUNS, WAITS, is_block_short=True), MEMORY),
        ("key-2", snapshot(RUNS, WAITS, is_block_short=True, slots=1), SLOT),
    ],
)
def test_a_calls_state_is_that_of_its_engines_snapshot(
    key: str, last: EngineSnapshot, expected: ProgramState
) -> None:
    assert states(overview(open_call(key), last=last)) == [expected]


def test_calls_that_no_snapshot_shows_take_its_free_slots_in_the_order_of_sending() -> None:
    """Fifteen calls that an engine with two slots has not reported yet do not all run."""
    calls = [open_call(f"new-{number}", sent_s=NOW - number / 100) for number in range(4)]

    assert states(overview(*calls, last=snapshot())) == [SLOT, SLOT, IN_ENGINE, IN_ENGINE]
    assert states(overview(*calls, last=snapshot(RUNS))) == [SLOT, SLOT, SLOT, IN_ENGINE]
    assert states(overview(*calls, last=snapshot(RUNS, WAITS))) == [SLOT] * 4


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"slots": 2}, [SLOT, IN_ENGINE, IN_ENGINE]),
        ({}, [IN_ENGINE] * 3),
        ({"slots": 2, "failure": "it ended with exit code 9"}, [SLOT] * 3),
    ],
)
def test_an_engine_without_snapshots_runs_as_many_calls_as_it_has_slots(
    fields: dict[str, Any], expected: list[ProgramState]
) -> None:
    calls = [open_call(f"new-{number}", sent_s=NOW - number / 100) for number in range(3)]

    assert states(overview(*calls, **fields)) == expected


def test_a_stream_that_has_begun_holds_a_slot() -> None:
    first = open_call("new-1", sent_s=NOW - 2.0)
    streams = open_call("new-2", sent_s=NOW - 1.0, first_bytes_s=NOW - 0.5)
    present = overview(first, streams, slots=1)

    assert states(present) == [SLOT, IN_ENGINE]
    assert present.place_of(streams).phase is EnginePhase.DECODE


def test_a_call_whose_end_its_engine_reported_waits_no_more() -> None:
    """The last snapshot is older than the report, and may still show the call in the queue."""
    call = open_call("key-2", reports=[report_of("key-2")], sent_s=NOW - 4.0, wait_s=0.25)
    present = overview(call, last=snapshot(RUNS, WAITS))

    assert (present.in_engine(call), states(present)) == (None, [IN_ENGINE])
    assert present.place_of(call).wait_s == 0.75


def test_a_call_whose_engine_has_left_is_there() -> None:
    call = open_call("new")
    assert Overview((call,), {}, NOW).call_state(call) is IN_ENGINE


@pytest.mark.parametrize(
    ("last", "program_id", "prompt_tokens", "expected"),
    [
        # Others wait for memory already.
        (with_memory(RUNS, INACTIVE), "new", 10, MEMORY),
        (with_memory(INACTIVE), "p", 10, MEMORY),
        # Nothing waits, and its prompt is too long for what is free.
        (with_memory(RUNS), "new", 200, MEMORY),
        (with_memory(RUNS), "new", 50, IN_ENGINE),
        # Its program is active.
        (with_memory(RUNS, INACTIVE), "idle", 200, IN_ENGINE),
        (with_memory(RUNS), "p", 200, IN_ENGINE),
        # The engine had slots, and no KV blocks.
        (snapshot(RUNS, is_block_short=True), "new", 10, MEMORY),
        # Calls of active programs are left out too.
        (with_memory(RUNS, INACTIVE, left_out=2, waiting=3), "new", 10, SLOT),
        (with_memory(RUNS, INACTIVE, left_out=1, waiting=1), "new", 10, MEMORY),
        # Host memory has room for all contexts, and the engine's memory has not.
        (with_memory(RUNS, parked=PARKED), "new", 200, MEMORY),
        (with_memory(RUNS, parked=PARKED), "new", 50, IN_ENGINE),
        (with_memory(RUNS, INACTIVE, left_out=1, waiting=1, parked=PARKED), "new", 10, MEMORY),
    ],
)
def test_of_a_call_that_no_snapshot_shows_the_working_set_decides(
    last: EngineSnapshot, program_id: str, prompt_tokens: int, expected: ProgramState
) -> None:
    call = open_call("new", program_id, prompt_tokens=prompt_tokens, sent_s=NOW - 0.1)

    assert overview(call, last=last, memory=last.memory()).call_state(call) is expected


def test_calls_that_no_snapshot_shows_fill_its_free_memory_in_the_order_of_sending() -> None:
    last = with_memory(RUNS, used=500, slots=8)
    calls = [open_call(f"n{at}", f"n{at}", prompt_tokens=200, sent_s=NOW - 1 + at / 10) for at in range(4)]
    present = overview(*calls, last=last, memory=last.memory())

    assert list(map(present.call_state, calls)) == [IN_ENGINE, IN_ENGINE, MEMORY, MEMORY]


@pytest.mark.parametrize(("for_memory", "expected"), [(False, SLOT), (True, MEMORY)])
def test_a_call_in_its_engines_queue_at_the_gateway_waits_there(
    for_memory: bool, expected: ProgramState
) -> None:
    call = open_call("key-3", since_s=NOW - 2.0, wait_s=0.5)
    present = overview(
        call, last=snapshot(RUNS), is_queued=lambda _: True, waits_for_memory=lambda _: for_memory
    )
    place = present.place_of(call)

    assert (place.state, place.state_s, place.wait_s) == (expected, 2.0, 2.5)


def test_waiting_includes_the_present_wait() -> None:
    """The snapshot is 0.3 s old: who waited then waits still."""
    waits, runs = open_call("key-2", wait_s=0.5), open_call("key-1")
    present = overview(waits, runs, last=snapshot(RUNS, WAITS))

    assert (present.place_of(waits).state_s, present.place_of(waits).wait_s) == pytest.approx((4.5, 5.0))
    assert (present.place_of(runs).state_s, present.place_of(runs).wait_s) == pytest.approx((4.5, 4.2))
    unseen = open_call("new", sent_s=NOW - 1.5)
    assert overview(unseen, last=snapshot(RUNS, WAITS)).place_of(unseen).wait_s == 1.5


@pytest.mark.parametrize(
    ("is_decoding", "first_bytes_s", "expected"),
    [
        (True, None, EnginePhase.DECODE),
        (False, 3.0, EnginePhase.PREFILL),
        (None, 3.0, EnginePhase.DECODE),
        (None, None, None),
    ],
)
def test_the_phase_is_the_engines_or_else_that_of_the_stream(
    is_decoding: bool | None, first_bytes_s: float | None, expected: EnginePhase | None
) -> None:
    entry = standing("p", place=1, level=1, is_running=True, is_decoding=is_decoding)
    call = open_call("key-1", first_bytes_s=first_bytes_s)

    assert overview(call, last=snapshot(entry)).place_of(call).phase is expected


@pytest.mark.parametrize(
    ("keys", "view", "expected"),
    [
        ((), program(active_calls=0), BETWEEN),
        (("key-1", "key-2", "key-3"), program(), IN_ENGINE),
        (("key-2", "key-3"), program(), SLOT),
        (("key-3",), program(), MEMORY),
        (("key-2",), program(is_ending=True), SLOT),
        ((), program(), ProgramState.AT_ANOTHER_GATEWAY),
    ],
)
def test_a_programs_state_is_that_of_its_furthest_call(
    keys: tuple[str, ...], view: Any, expected: ProgramState
) -> None:
    present = overview(*map(open_call, keys), last=snapshot(RUNS, WAITS, INACTIVE))

    assert present.program_state(view) is expected


def test_a_programs_waiting_is_that_of_all_its_calls() -> None:
    decodes = standing("p", place=1, level=1, is_running=True, is_decoding=True)
    prefills = standing("p", place=4, level=1, is_running=True, is_decoding=False, since_s=9.0)
    calls = map(open_call, ("key-1", "key-2", "key-4"))
    place = overview(*calls, last=snapshot(decodes, WAITS, prefills, slots=3)).program_place(program())

    assert place.text == "in the engine (decode)"
    assert place.state_s == pytest.approx(9.3)
    assert place.wait_s == pytest.approx(4.2 + 4.5 + 4.2)


def test_between_calls_the_tools_that_the_last_answer_called_are_named() -> None:
    settled = [settled_call(asked_tools=("plan",)), settled_call(asked_tools=("search", "bash"))]
    place = overview().program_place(program(active_calls=0), settled)

    assert (place.text, place.state_s, place.wait_s) == ("between calls (tools search, bash)", 20.0, 0.0)
    assert overview().program_place(program(active_calls=0), settled[:1]).text == "between calls (tool plan)"
    assert overview().program_place(program(active_calls=0)).text == "between calls"


def test_of_parallel_choices_the_last_counts() -> None:
    first = standing("p", place=1, level=1, is_running=True, call_id="k")
    last = standing("p", place=9, level=1, call_id="k")
    call = open_call("k")

    assert overview(call, last=snapshot(first, last)).in_engine(call) == last


def elsewhere(gateway_id: str, **fields: Any) -> Overview:
    """Return the overview of a gateway without calls, before an engine that two others send calls to."""
    decodes = {"is_running": True, "is_decoding": True, "wait_s": 1.0}
    runs = standing("p", place=1, level=1, call_id="call-1~aa-1", **decodes)
    waits = standing("q", place=2, level=1, call_id="call-2~bb-7", since_s=16.6, wait_s=16.6)
    present = engine(snapshot(runs, waits, standing("alien", place=3, level=1)), **fields)
    return Overview((), {ENGINE: present}, NOW, gateway_id)


def test_calls_of_other_gateways_are_where_the_engines_show_them() -> None:
    present = elsewhere("cc")

    place = present.program_place(program("p", active_calls=1))
    assert (place.state, place.phase, place.wait_s) == (IN_ENGINE, EnginePhase.DECODE, 1.0)
    place = present.program_place(program("q", active_calls=1))
    assert (place.state, place.state_s, place.wait_s) == (SLOT, 16.6 + 0.3, 16.6 + 0.3)
    place = present.program_place(program("r", active_calls=1))
    assert (place.text, place.wait_s) == ("at another gateway", 0.0)
    assert sorted(place.state for place in present.open_places()) == [IN_ENGINE, SLOT]


def test_what_remains_of_its_own_calls_in_a_snapshot_is_no_other_gateways() -> None:
    """They have ended since."""
    present = elsewhere("bb")
    assert [place.state for place in present.open_places()] == [IN_ENGINE]
    assert present.program_state(program("q", active_calls=1)) is ProgramState.AT_ANOTHER_GATEWAY


def test_the_next_calls_run_in_the_slots_of_those_that_have_ended() -> None:
    """An engine leaves no slot free while calls wait."""
    runs = [
        standing(f"a{at}", place=at, level=1, is_running=True, call_id=f"r-{at}~aa-{at}") for at in (1, 2)
    ]
    waits = [standing(f"b{at}", place=at, level=1, call_id=f"w-{at}~bb-{at}") for at in (3, 4, 5)]
    ended = open_call("r-1~aa-1", program_id="a1", reports=[report_of("r-1~aa-1")])
    present = Overview([ended], {ENGINE: engine(snapshot(*runs, *waits))}, NOW, "aa")

    places = {key: present.place_elsewhere(f"b{at}", key) for at, key in ((3, "w-3~bb-3"), (4, "w-4~bb-4"))}
    # The other call of this gateway is not open any more.
    assert [place and (place.state, place.state_s) for place in places.values()] == [(IN_ENGINE, 0.3)] * 2
    assert [place.state for place in present.open_places()].count(SLOT) == 1


def test_calls_of_before_a_snapshot_are_corrected_by_its_programs_and_numbers() -> None:
    """An engine with many calls sends them every two seconds, and the programs that have some more often."""
    calls = (
        standing("gone", place=1, level=1, is_running=True, call_id="c~aa-1"),
        standing("stays", place=2, level=1, is_running=True, call_id="c~aa-2"),
        standing("next", place=3, level=1, call_id="c~aa-3"),
        standing("later", place=4, level=1, call_id="c~aa-4"),
    )
    programs = PresentPrograms((), ("stays", "next", "later"))
    last = snapshot(*calls, running=2, waiting=1, present=programs)
    present = Overview([], {ENGINE: engine(last)}, NOW, "bb")

    assert {entry.program_id: entry.is_running for entry, _ in present._in_engines.values()} == {
        "stays": True,
        "next": True,
        "later": False,
    }


@pytest.mark.parametrize(
    ("key", "expected"),
    [("call-1~ab12-3", "ab12"), ("a~b~ab12-3", "ab12"), ("call-1", None), ("cmpl-1-2", None), ("~", None)],
)
def test_a_calls_key_names_its_gateway(key: str, expected: str | None) -> None:
    assert gateway_of(key) == expected
