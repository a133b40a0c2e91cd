"""The queue by key."""

from __future__ import annotations

import math

from tests.core.calls import make_call

from autellix_backend.core.call import Call, ChangeReason
from autellix_backend.core.policies.base import Policy
from autellix_backend.core.policies.sjf import Sjf
from autellix_backend.core.policies.srpt import Srpt
from autellix_backend.core.queues.keyed import FRONT, KEYED, KeyedQueue
from autellix_backend.core.table import Program


def make(name: str, arrival_s: float = 0.0) -> Call:
    return make_call(name, name, arrival_s=arrival_s)


def sized(size_s: float) -> Program:
    return Program(program_id="p", created_s=0.0, expected_s=size_s)


def names(queue: KeyedQueue) -> str:
    queue.check()
    return "".join(call.call_id for call in queue)


def filled(policy: Policy, **sizes_s: float) -> tuple[KeyedQueue, list[Call]]:
    queue = KeyedQueue(policy.size, 0.1, holds_slots=policy.holds_slots, changes_sizes=policy.sizes_programs)
    calls = [make(name) for name in sizes_s]
    for call, size_s in zip(calls, sizes_s.values(), strict=True):
        call.expected_s = size_s
        queue.insert(call, sized(size_s))
    return queue, calls


def test_smaller_calls_go_first_and_equal_ones_in_order_of_arrival() -> None:
    queue, calls = filled(Srpt(), a=2.0, b=1.0, c=2.0, d=0.0)

    assert names(queue) == "dbac"
    assert queue.level_sizes() == (0, 4)
    assert {call.level for call in calls} == {KEYED}


def test_promoted_calls_go_before_all_keys_without_a_quantum() -> None:
    queue, (_, large) = filled(Srpt(), s=1.0, l=9.0)

    queue.promote(large)

    assert names(queue) == "ls"
    assert (large.level, large.quantum_s, large.is_quantum_binding) == (FRONT, math.inf, False)
    queue.remove(large)
    assert names(queue) == "s"


def test_a_new_size_changes_position_and_quantum() -> None:
    queue, (_, second) = filled(Srpt(), a=1.0, b=2.0)
    assert (second.quantum_s, second.is_quantum_binding) == (0.5, True)

    change = queue.on_quantum_used(second, sized(0.2))

    assert (change.old, change.new, change.reason) == (KEYED, KEYED, ChangeReason.RESIZING)
    assert names(queue) == "ba"
    assert second.quantum_s == 0.1


def test_equals_keep_their_order_when_their_size_changes() -> None:
    queue, calls = filled(Srpt(), a=3.0, b=3.0, c=3.0)

    for call in (calls[1], calls[0], calls[2]):
        queue.on_quantum_used(call, sized(2.0))

    assert names(queue) == "abc"


def test_calls_with_held_slots_go_before_the_front_in_order_of_their_start() -> None:
    queue, calls = filled(Sjf(), a=1.0, b=1.0, c=1.0)
    queue.promote(calls[0])

    queue.on_started(calls[2])
    queue.on_started(calls[1])
    queue.on_started(calls[2])

    assert names(queue) == "cba"
    assert queue.level_sizes() == (3, 0)
    queue.remove(calls[2])
    assert names(queue) == "ba"
