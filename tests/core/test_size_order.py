"""The queue ordered by expected size."""

from __future__ import annotations

import math

from autellix_backend.core.call import Call
from autellix_backend.core.size_order import FRONT, SIZED, SizeOrder


def make(name: str, size_s: float) -> Call:
    return Call(
        call_id=name,
        program_id="p",
        thread_id="0",
        arrival_s=0.0,
        waiting_since_s=0.0,
        inherited_service_s=0.0,
        size_s=size_s,
    )


def names(order: SizeOrder) -> str:
    order.check()
    return "".join(call.call_id for call in order)


def test_smaller_calls_go_first_and_equal_ones_in_order_of_arrival() -> None:
    order = SizeOrder(0.1)
    for name, size_s in (("a", 2.0), ("b", 1.0), ("c", 2.0), ("d", 0.0)):
        order.append(make(name, size_s), order.level_of(99.0))

    assert names(order) == "dbac"
    assert order.sizes() == (0, 4)
    assert len(order) == SIZED


def test_the_front_goes_before_all_sizes_and_has_no_turns() -> None:
    order = SizeOrder(0.1)
    small, large = make("s", 1.0), make("l", 9.0)
    for call in (small, large):
        order.append(call, SIZED)

    order.move(large, FRONT)

    assert names(order) == "ls"
    assert large.quantum_s == math.inf
    order.remove(large)
    assert names(order) == "s"


def test_a_new_size_is_a_new_place_and_a_new_quantum() -> None:
    order = SizeOrder(0.1)
    first, second = make("a", 1.0), make("b", 2.0)
    for call in (first, second):
        order.append(call, SIZED)
    assert second.quantum_s == 0.5

    order.resize(second, 0.2)

    assert names(order) == "ba"
    assert second.quantum_s == 0.1


def test_equals_keep_their_order_when_their_size_changes() -> None:
    order = SizeOrder(0.1)
    calls = [make(name, 3.0) for name in "abc"]
    for call in calls:
        order.append(call, SIZED)

    for call in (calls[1], calls[0], calls[2]):
        order.resize(call, 2.0)

    assert names(order) == "abc"


def test_held_calls_go_before_the_front_in_the_order_of_their_start() -> None:
    order = SizeOrder(0.1)
    calls = [make(name, 1.0) for name in "abc"]
    for call in calls:
        order.append(call, SIZED)
    order.move(calls[0], FRONT)

    order.hold(calls[2])
    order.hold(calls[1])
    order.hold(calls[2])

    assert names(order) == "cba"
    assert order.sizes() == (3, 0)
    order.remove(calls[2])
    assert names(order) == "ba"
