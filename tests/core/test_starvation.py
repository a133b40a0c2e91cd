"""The ratio test and the deadlines."""

from __future__ import annotations

import math

import pytest
from tests.core.calls import make_call

from autellix_backend.core.call import Call
from autellix_backend.core.starvation import StarvationWatch, is_starving
from autellix_backend.core.table import Program


def waiting_call(call_id: str = "a") -> Call:
    return make_call(call_id, level=2)


@pytest.mark.parametrize(
    ("wait_s", "service_s", "expected"), [(4, 2, True), (3.9, 2, False), (5, 0, False), (0, 0, False)]
)
def test_the_threshold_is_part_of_starving(wait_s: float, service_s: float, expected: bool) -> None:
    assert is_starving(wait_s, service_s, beta=2) is expected


def test_a_call_is_due_at_its_deadline_and_not_before() -> None:
    watch, call = StarvationWatch(beta=2.0), waiting_call()
    watch.watch(call, Program(program_id="p", created_s=0.0, service_s=3.0, wait_s=1.0), 0.0)

    assert watch.pop_due(4.9) == []
    assert watch.pop_due(5.0) == [call]
    assert watch.pop_due(5.0) == []


def test_a_removed_call_is_never_due() -> None:
    watch, call = StarvationWatch(beta=2.0), waiting_call()
    watch.watch(call, Program(program_id="p", created_s=0.0, service_s=3.0), 0.0)
    watch.forget(call)

    assert watch.pop_due(1e9) == []


def test_an_earlier_deadline_replaces_a_later_one() -> None:
    watch, call = StarvationWatch(beta=2.0), waiting_call()
    program = Program(program_id="p", created_s=0.0, service_s=3.0)
    watch.watch(call, program, 0.0)
    program.wait_s = 4.0
    watch.watch(call, program, 0.0)

    assert watch.pop_due(2.0) == [call]
    assert watch.pop_due(1e9) == []


def test_the_watch_stays_small_over_many_changes() -> None:
    watch, call = StarvationWatch(beta=2.0), waiting_call()
    program = Program(program_id="p", created_s=0.0, service_s=3.0)
    for i in range(1000):
        program.wait_s = i / 1000
        watch.watch(call, program, 0.0)
        watch.check()

    assert len(watch._heap) <= 64


def test_the_watch_of_a_program_stays_small_over_many_changes_of_a_call() -> None:
    """Void entries behind the first valid one are dropped too."""
    watch = StarvationWatch(beta=2.0)
    first, later = waiting_call("a"), waiting_call("b")
    program = Program(program_id="p", created_s=0.0, service_s=3.0)
    watch.watch(first, program, 0.0)
    for i in range(1000):
        later.waiting_since_s = float(i)
        watch.watch(later, program, 0.0)
        watch.check()

    assert sum(map(len, watch._programs["p"].heaps.values())) <= 64
    assert watch.pop_due(6.0) == [first]


def test_the_wait_of_a_program_counts_for_its_running_calls() -> None:
    """Not the time, in which a running call does not wait."""
    watch, call = StarvationWatch(beta=2.0), waiting_call()
    call.start(1.0)
    program = Program(program_id="p", created_s=0.0, service_s=3.0)
    watch.watch(call, program, 1.0)
    assert watch.pop_due(1e9) == []
    program.wait_s = 5.0
    watch.review(program, 2.0)

    assert watch.pop_due(2.0) == [call]


def test_a_call_without_service_has_no_deadline_until_its_program_has_some() -> None:
    watch, call = StarvationWatch(beta=2.0), waiting_call()
    program = Program(program_id="p", created_s=0.0)
    watch.watch(call, program, 0.0)
    assert (watch.next_deadline_s, watch.pop_due(1e9)) == (math.inf, [])
    program.service_s = 3.0
    watch.review(program, 10.0)

    assert watch.pop_due(10.0) == [call]
