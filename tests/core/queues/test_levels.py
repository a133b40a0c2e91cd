"""The queues by level."""

from __future__ import annotations

import math

import pytest
from tests.core.calls import make_call

from autellix_backend.core.call import Call, ChangeReason
from autellix_backend.core.queues.levels import LevelQueue, RotationQueue
from autellix_backend.core.table import Program

PROGRAM = Program(program_id="p", created_s=0.0)


def call(call_id: str, service_s: float = 0.0) -> Call:
    return make_call(call_id, inherited_service_s=service_s)


def insert(queue: LevelQueue, *calls: Call) -> None:
    for each in calls:
        queue.insert(each, PROGRAM)


@pytest.mark.parametrize(
    ("service_s", "quantum_s", "binds"), [(0, 1, True), (1, 2, True), (3, math.inf, False)]
)
def test_a_quantum_is_the_width_of_its_level(service_s: float, quantum_s: float, binds: bool) -> None:
    """It binds in all levels but the last."""
    queue, a = LevelQueue((1, 3)), call("a", service_s)

    insert(queue, a)

    assert (a.quantum_s, a.is_quantum_binding) == (quantum_s, binds)


def test_each_call_moves_alone() -> None:
    queue = LevelQueue((1,))
    insert(queue, call("a"), call("b"))

    assert queue.first_of("p") is None


def test_a_demoted_call_goes_to_the_end_of_the_next_level() -> None:
    queue, a, b = LevelQueue((1,)), call("a"), call("b", 1.0)
    insert(queue, a, b)

    change = queue.on_quantum_used(a, PROGRAM)

    assert (change.old, change.new, change.reason) == (1, 2, ChangeReason.DEMOTION)
    assert list(queue) == [b, a]
    assert queue.level_sizes() == (0, 2)
    assert (a.level, a.demotions, b.rank < a.rank) == (2, 1, True)
    queue.check()


def test_a_promoted_call_goes_to_the_end_of_the_first_level() -> None:
    queue, a, b = LevelQueue((1,)), call("a"), call("b", 1.0)
    insert(queue, b, a)

    queue.promote(b)

    assert list(queue) == [a, b]
    assert queue.level_sizes() == (2, 0)


def test_without_demotion_no_quantum_binds() -> None:
    queue, a = LevelQueue((1, 3), demotes=False), call("a")

    insert(queue, a)

    assert (a.quantum_s, a.is_quantum_binding) == (1, False)


def test_a_rotated_call_goes_to_the_end_of_the_only_level() -> None:
    queue, a, b = RotationQueue(2.0), call("a"), call("b", 9.0)
    insert(queue, a, b)
    assert (a.quantum_s, a.is_quantum_binding, b.level) == (2.0, True, 1)

    change = queue.on_quantum_used(a, PROGRAM)

    assert (change.old, change.new, change.reason) == (1, 1, ChangeReason.ROTATION)
    assert list(queue) == [b, a]
    queue.check()
