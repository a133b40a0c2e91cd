"""What operators are shown of programs and calls."""

from __future__ import annotations

import pytest
from msgspec import structs
from tests.gateway.snapshots import open_call, overview, program, snapshot, standing
from tests.observe.settled_calls import settled_call

from autellix_backend.console.explain.views import MAX_THREAD_NAMES, call_rows, critical_path_s, program_row
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.hints import Hints
from autellix_backend.core.priority import Priority
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_backend.observe.states import ProgramState
from autellix_backend.stores.base import CallEnd, CallStart, StoredCall

CONFIG = SchedulerConfig(policy="atlas", bounds=(1.0, 2.0, 8.0))


def finished(
    call_id: str, service_s: float, parents: tuple[str, ...] | None = None, thread_id: str = "0"
) -> StoredCall:
    end = CallEnd(
        key=call_id,
        program_id="p",
        outcome="ok",
        services_s=(service_s,),
        wait_s=0.5,
        table_wait_s=0.5,
        inherited_service_s=0.0,
        is_estimated=False,
        cached_tokens=3,
    )
    start = CallStart(key=call_id, call_id=call_id, program_id="p", thread_id=thread_id, parents=parents)
    return StoredCall(start=start, start_s=101.0, finish_s=104.0, end=end)


def unfinished(key: str) -> StoredCall:
    return StoredCall(start=CallStart(key=key, call_id="again", program_id="p"), start_s=105.0)


def test_a_running_program_shows_its_best_level_and_its_share_of_the_blocks() -> None:
    runs = standing("p", place=1, level=1, is_running=True, kv_blocks=3)
    waits = standing("p", place=2, level=3)
    calls = (open_call("key-1"), open_call("key-2"))
    view = program(active_calls=2, active_threads=2)
    shown = program_row(view, overview(*calls, last=snapshot(runs, waits)), CONFIG, Tenant())

    assert (shown.state, shown.state_text, shown.level) == ("in_engine", "in the engine", 1)
    assert (shown.engines, shown.threads, shown.kv_share) == (("replica-0",), 2, 0.25)
    assert shown.ratio == pytest.approx(2.0 / 1.4)
    assert shown.age_s == 30.0


def test_a_program_has_the_priority_of_its_latest_call() -> None:
    urgent = open_call("key-1")
    urgent.start = structs.replace(urgent.start, hints=Hints(priority=Priority.INTERACTIVE))
    settled = [settled_call(priority=Priority.INTERACTIVE), settled_call(priority=Priority.BATCH)]

    for calls, ended, expected in (
        ((urgent,), settled, "interactive"),
        ((), settled, "batch"),
        ((), [], "default"),
    ):
        assert program_row(program(), overview(*calls), CONFIG, Tenant(), ended).priority == expected


def test_the_wait_of_a_program_includes_that_of_its_open_calls() -> None:
    """The process table has what promotions have left of the waiting of finished calls."""
    present = overview(open_call("key-1"), last=snapshot(standing("p", place=1, level=3)))
    settled = [settled_call(wait_s=1.0), settled_call(wait_s=2.5)]
    shown = program_row(program(finished_calls=2), present, CONFIG, Tenant(), settled)
    assert shown.wait_s == pytest.approx(3.5 + 4.5)
    assert shown.state is ProgramState.WAITING_FOR_SLOT
    assert shown.state_s == pytest.approx(4.5)

    elsewhere = program_row(program(finished_calls=3), present, CONFIG, Tenant(), settled)
    assert elsewhere.wait_s == pytest.approx(2.0 + 4.5)


def test_a_program_without_a_call_shows_the_level_of_its_next_call() -> None:
    shown = program_row(program(active_calls=0, service_s=3.0), overview(), CONFIG, Tenant())

    assert (shown.state, shown.level, shown.state_s, shown.kv_share) == ("between_calls", 3, 20.0, None)
    assert (shown.service_s, shown.phase, shown.tools) == (3.0, None, ())


def test_a_program_shows_the_threads_that_it_has_had() -> None:
    """The names come from settled and open calls; a thread has its first name."""
    settled = [
        settled_call(call_id="1", thread_id="0", thread_name=None),
        settled_call(call_id="2", thread_id="1", thread_name="planner", engine="replica-7"),
        settled_call(call_id="3", thread_id="1", thread_name="renamed", engine="replica-8"),
    ]
    idle = program_row(program(active_calls=0), overview(), CONFIG, Tenant(), settled)
    assert (idle.threads, idle.thread_names, idle.engines) == (2, ("planner",), ("replica-8",))

    start = CallStart(key="key-1", call_id="4", program_id="p", thread_id="2", thread_name="critic")
    present = overview(open_call("key-1", start=start))
    busy = program_row(program(), present, CONFIG, Tenant(), settled)
    assert (busy.threads, busy.thread_names, busy.engines) == (3, ("planner", "critic"), ("replica-0",))


def test_a_program_of_another_gateway_shows_the_threads_of_its_running_calls() -> None:
    shown = program_row(program(active_threads=4), overview(), CONFIG, Tenant())
    assert (shown.threads, shown.thread_names, shown.engines) == (4, (), ())


def test_the_names_of_a_row_are_bounded() -> None:
    settled = [settled_call(thread_id=str(number), thread_name=f"name-{number}") for number in range(100)]
    shown = program_row(program(), overview(), CONFIG, Tenant(), settled)
    assert (shown.threads, len(shown.thread_names)) == (100, MAX_THREAD_NAMES)


@pytest.mark.parametrize("policy", ["fcfs", "boost"])
def test_under_a_policy_without_levels_a_program_has_neither_level_nor_ratio(policy: str) -> None:
    present = overview(open_call("key-1"), last=snapshot(standing("p", place=1, level=1)))
    shown = program_row(program(), present, SchedulerConfig(policy=policy), Tenant())

    assert (shown.level, shown.ratio) == (None, None)


def test_calls_that_share_a_client_id_have_their_own_states() -> None:
    """A client may send a call again while the first attempt is still open."""
    first, second = unfinished("key-1"), unfinished("key-2")
    calls = [open_call(call.start.key, start=call.start) for call in (first, second)]
    runs, waits = standing("p", place=1, level=1, is_running=True), standing("p", place=2, level=3)
    rows = call_rows(program(calls=(first, second)), overview(*calls, last=snapshot(runs, waits)))

    assert [(row.call_id, row.state) for row in rows] == [
        ("again", "in_engine"),
        ("again", "waiting_for_slot"),
    ]


def test_the_critical_path_follows_parents_or_else_threads() -> None:
    calls = [
        finished("root", 1.0, ()),
        finished("short", 1.0, ("root",), "1"),
        finished("long", 5.0, ("root",), "2"),
        finished("join", 2.0, ("short", "long")),
        finished("alone", 0.5, None, "1"),
        unfinished("open"),
    ]

    assert critical_path_s(calls) == 8.0
    assert critical_path_s([finished("a", 1.0), finished("b", 2.0), finished("c", 9.0, thread_id="1")]) == 9.0
    assert critical_path_s([]) == 0.0


def test_calls_are_timed_from_their_programs_arrival() -> None:
    view = program(calls=(finished("done", 1.0), unfinished("key-1"), unfinished("elsewhere")))
    waits = standing("p", place=1, level=3)
    present = overview(open_call("key-1"), last=snapshot(waits))
    done, waiting, elsewhere = call_rows(view, present)

    assert (done.state, done.start_s, done.finish_s, done.duration_s) == (
        "ended",
        1.0,
        4.0,
        3.0,
    )
    assert (done.outcome, done.service_s, done.cached_tokens) == ("ok", 1.0, 3)
    assert (waiting.state, waiting.duration_s, waiting.level) == ("waiting_for_slot", 25.0, 3)
    assert waiting.wait_s == pytest.approx(4.5)
    assert (waiting.outcome, waiting.finish_s) == (None, None)
    assert (elsewhere.state, elsewhere.level) == ("at_another_gateway", None)
    assert elsewhere.state_text == "at another gateway"
