"""The queues."""

from __future__ import annotations

import math

import pytest

from autellix_backend.core.call import Call
from autellix_backend.core.levels import Levels


def call(call_id: str) -> Call:
    return Call(
        call_id=call_id,
        program_id="p",
        thread_id="0",
        arrival_s=0.0,
        waiting_since_s=0.0,
        inherited_service_s=0.0,
    )


@pytest.mark.parametrize(("service_s", "level"), [(0, 1), (0.99, 1), (1, 2), (2.99, 2), (3, 3), (1e9, 3)])
def test_ranges_are_half_open(service_s: float, level: int) -> None:
    assert Levels((1, 3)).level_of(service_s) == level


@pytest.mark.parametrize(("level", "quantum_s"), [(1, 1), (2, 2), (3, math.inf)])
def test_a_quantum_is_the_width_of_its_level(level: int, quantum_s: float) -> None:
    levels, a = Levels((1, 3)), call("a")

    levels.append(a, level)

    assert a.quantum_s == quantum_s


def test_quanta_may_be_given() -> None:
    levels, a = Levels((1,), (5, 7)), call("a")

    levels.append(a, 2)

    assert a.quantum_s == 7


def test_a_moved_call_goes_to_the_end() -> None:
    levels, a, b = Levels((1,)), call("a"), call("b")
    levels.append(a, 1)
    levels.append(b, 2)
    levels.move(a, 2)

    assert list(levels) == [b, a]
    assert levels.sizes() == (0, 2)
    assert (a.level, b.seq < a.seq) == (2, True)
    levels.check()
