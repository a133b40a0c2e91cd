"""Groups of programs: those whose group is nearly complete have a head start, each within its tenant."""

from __future__ import annotations

from typing import Any

import pytest

from autellix_backend.core.arrival import Arrival, Context
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.hints import Hints
from autellix_backend.core.machine import Machine
from autellix_backend.core.places import MOVES_PER_REVIEW


class Engine:
    """A machine whose programs all arrive at once; their mean response time is that of `others`."""

    def __init__(self, *, kv_tokens: float = 1e9, **settings: Any) -> None:
        config = {"policy": "boost", "boost": 0.0, "admission": "working_set", "kv_share": 1.0, **settings}
        self.machine = Machine(SchedulerConfig(**config), kv_tokens=kv_tokens)
        self.now = 0.0

    def arrive(self, program: str, group: str = "", tenant: str = "", tokens: int = 10) -> None:
        """Have a call arrive, named as its program is."""
        arrival = Arrival(program, program, hints=Hints(group=group), tenant=tenant, context=Context(tokens))
        self.machine.arrive(arrival, self.now)

    def end(self, program: str) -> None:
        self.machine.finish(program, self.now)
        self.machine.end_program(program, self.now)

    def decide(self) -> None:
        self.machine.review(self.now, 0, lambda _: 10)
        self.machine.tick(self.now)
        self.machine.check()

    def order(self) -> list[str]:
        self.decide()
        return [call.call_id for call in self.machine]


def test_the_last_ones_of_a_group_go_first() -> None:
    """Half of a group is worth half of the mean response time."""
    engine = Engine()
    for program, group in (("a", "g"), ("b", "h"), ("c", "h"), ("d", "h"), ("e", "h"), ("f", "")):
        engine.arrive(program, group)
    assert engine.order() == ["a", "b", "c", "d", "e", "f"]
    engine.now = 10.0
    engine.end("d")
    engine.end("e")
    assert engine.order() == ["b", "c", "a", "f"]
    response_s = engine.machine.table.statistics.response_s
    assert engine.machine.call("b").key == pytest.approx(-response_s / 2)
    assert engine.machine.call("f").key == 0.0


def test_they_get_the_memory_that_one_of_them_leaves() -> None:
    """The review that follows its end knows the new order already."""
    engine = Engine(kv_tokens=10)
    for program, group in (("a", "g"), ("b", "h"), ("c", "g")):
        engine.arrive(program, group)
    assert engine.order() == ["a"]
    engine.now = 5.0
    engine.end("a")
    assert engine.order() == ["c"]


def test_a_program_that_ends_with_its_last_call_counts() -> None:
    engine = Engine()
    engine.arrive("a", "g")
    engine.arrive("b", "h")
    engine.arrive("c", "g")
    engine.now = 5.0
    engine.machine.end_program("a", engine.now)
    assert engine.order() == ["a", "b", "c"]
    engine.machine.abort("a", engine.now)
    assert engine.order() == ["c", "b"]


def test_groups_are_their_tenants_and_leave_with_their_last_program() -> None:
    engine = Engine()
    engine.arrive("a", "g", tenant="one")
    engine.arrive("b", "g", tenant="two")
    engine.now = 5.0
    engine.end("a")
    engine.decide()
    assert engine.machine.call("b").key == 0.0
    engine.end("b")
    engine.decide()
    assert engine.machine.table._groups == {}


def test_a_program_keeps_its_first_group() -> None:
    engine = Engine()
    engine.arrive("a", "g")
    engine.machine.arrive(Arrival("second", "a", hints=Hints(group="h")), engine.now)
    engine.machine.arrive(Arrival("third", "a"), engine.now)
    engine.machine.check()
    group = engine.machine.table["a"].group
    assert group is not None
    assert (group.key, list(group.living)) == (("", "g"), ["a"])


def test_a_large_group_moves_in_parts() -> None:
    engine = Engine()
    for number in range(3 * MOVES_PER_REVIEW):
        engine.arrive(f"p{number}", "g")
    engine.decide()
    engine.now = 10.0
    engine.end("p0")
    assert engine.machine.places.are_stale
    decisions = 0
    while engine.machine.places.are_stale:
        engine.decide()
        decisions += 1
    assert 3 <= decisions <= 6
    assert all(call.key < 0 for call in engine.machine)


def test_other_policies_have_no_head_start() -> None:
    engine = Engine(policy="fcfs", admission="none")
    engine.arrive("a", "g")
    engine.arrive("b", "h")
    engine.arrive("c", "g")
    engine.now = 5.0
    engine.end("a")
    assert not engine.machine.places.are_stale
    assert engine.order() == ["b", "c"]
