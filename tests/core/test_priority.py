"""Priorities: the order that they make, and the memory that programs of `batch` leave to others."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from tests.core.test_admission import CAPACITY, HOLD_S, Engine, make_machine
from tests.core.test_boost import make_boost, program

from autellix_backend.core.admission.idle import LEAST_HOLD_S
from autellix_backend.core.admission.memory import BATCH_SHARE
from autellix_backend.core.admission.review import STARVING
from autellix_backend.core.admission.working_set import REVIEW_STEPS
from autellix_backend.core.arrival import Arrival, Context
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.hints import Hints
from autellix_backend.core.machine import Machine
from autellix_backend.core.priority import Priority
from autellix_wire.priorities import PRIORITIES

ORDERS = json.loads((Path(__file__).parent / "vectors" / "priorities.json").read_text())["orders"]
INTERACTIVE, DEFAULT, BATCH = Priority


def test_they_are_those_of_the_wire() -> None:
    assert tuple(Priority) == PRIORITIES


@pytest.mark.parametrize("case", ORDERS, ids=lambda case: case["name"])
def test_vectors_of_the_order_are_reproduced(case: dict[str, Any]) -> None:
    machine = Machine(SchedulerConfig(boost=0.0, admission="none"))
    for name, tenant, priority, at_s in case["programs"]:
        machine.arrive(Arrival(name, name, tenant=tenant, hints=Hints(priority=Priority(priority))), at_s)

    assert case["order"] == [call.call_id for call in machine]
    machine.check()


def test_the_head_start_adds_to_that_for_little_work() -> None:
    boost = make_boost()

    for priority in Priority:
        key_s = boost.key_s(program(50.0, work=4096.0, hints=Hints(priority=priority)))
        assert key_s == pytest.approx(boost.key_s(program(50.0, work=4096.0)) - priority.head_start_s)


def test_the_latest_call_gives_a_program_its_priority() -> None:
    machine = Machine(SchedulerConfig(boost=0.0, admission="none"))
    machine.arrive(Arrival("a1", "a"), 0.0)
    machine.arrive(Arrival("b1", "b"), 1.0)
    assert [call.call_id for call in machine] == ["a1", "b1"]

    machine.arrive(Arrival("b2", "b", hints=Hints(priority=INTERACTIVE)), 2.0)
    machine.tick(2.0)

    assert [call.call_id for call in machine] == ["b1", "b2", "a1"]
    machine.check()


@pytest.mark.parametrize("policy", ["plas", "fcfs", "atlas", "sjf"])
def test_other_policies_order_without_it(policy: str) -> None:
    machine = Machine(SchedulerConfig(policy=policy))
    machine.arrive(Arrival("b", "b", hints=Hints(priority=BATCH)), 0.0)
    machine.arrive(Arrival("i", "i", hints=Hints(priority=INTERACTIVE)), 1.0)

    assert [call.call_id for call in machine] == ["b", "i"]


@pytest.fixture
def engine() -> Engine:
    return Engine()


def test_programs_of_batch_leave_a_part_of_the_memory_to_others(engine: Engine) -> None:
    share = round(BATCH_SHARE * CAPACITY)
    engine.arrive("a1", share - 10, hints=Hints(priority=BATCH))
    engine.arrive("b1", 20, hints=Hints(priority=BATCH))
    assert engine.refused == ["b1"]

    engine.arrive("c1", 20, hints=Hints(priority=INTERACTIVE))
    engine.review()

    assert engine.active == "ac"
    assert engine.refused == ["b1"]


def test_a_program_of_batch_alone_is_active_however_large(engine: Engine) -> None:
    engine.arrive("a1", CAPACITY, hints=Hints(priority=BATCH))

    assert engine.active == "a"


def test_programs_of_batch_make_room_the_worst_first(engine: Engine) -> None:
    for name in "abc":
        engine.arrive(f"{name}1", 30, hints=Hints(priority=BATCH))
        engine.now += 1.0
    engine.run("a1", "b1", "c1")
    engine.grown = dict.fromkeys(("a1", "b1", "c1"), 30)
    engine.arrive("d1", 40)

    assert engine.review() == ["d1"]

    # Their calls run to the end, and their memory is free only then.
    assert engine.active == "ad"
    assert engine.refused == []
    engine.finish("b1", 30)
    engine.finish("c1", 30)
    assert engine.active == "ad"


def test_they_make_room_for_several_at_once(engine: Engine) -> None:
    for name in "abc":
        engine.arrive(f"{name}1", 30, hints=Hints(priority=BATCH))
    engine.arrive("d1", 30)
    engine.arrive("e1", 30, hints=Hints(priority=INTERACTIVE))

    assert set(engine.review()) == {"b1", "c1", "d1", "e1"}
    assert engine.active == "ade"
    engine.arrive("f1", 20)
    assert engine.review() == ["a1", "f1"]
    assert engine.active == "def"


def test_a_program_that_has_room_takes_none_of_theirs(engine: Engine) -> None:
    engine.arrive("a1", 60)
    engine.run("a1")
    engine.arrive("b1", 30, hints=Hints(priority=BATCH))
    engine.arrive("c1", 20)
    engine.arrive("d1", 15)
    engine.finish("a1", 60)
    engine.machine.end_program("a", engine.now)

    assert engine.review() == ["c1", "d1"]
    assert engine.active == "bcd"


def test_a_program_of_batch_whose_calls_have_all_been_sent_waits_for_nothing(engine: Engine) -> None:
    """It is between two calls, so that nothing waits once another has its place."""
    engine.arrive("a1", 80, hints=Hints(priority=BATCH))
    engine.finish("a1", 80)
    engine.arrive("b1", 10)
    engine.arrive("c1", 40)

    assert engine.review() == ["c1"]
    assert engine.active == "bc"


def test_they_make_no_room_where_that_would_not_suffice(engine: Engine) -> None:
    engine.arrive("a1", 70)
    engine.arrive("b1", 20, hints=Hints(priority=BATCH))
    engine.arrive("c1", 40)

    assert engine.review() == []
    assert engine.active == "ab"


@pytest.mark.parametrize("others", [0, 1])
def test_they_make_no_room_for_programs_of_batch_or_of_other_tenants(engine: Engine, others: int) -> None:
    engine.arrive("a1", 80, tenant="patient", hints=Hints(priority=BATCH))
    for number in range(others):
        arrival = Arrival(
            f"b{number}", "b", tenant="patient", context=Context(40), hints=Hints(priority=BATCH)
        )
        engine.machine.arrive(arrival, 0.0)
    engine.arrive("c1", 40, tenant="urgent", hints=Hints(priority=INTERACTIVE))

    assert engine.review() == []
    assert engine.active == "a"


def test_one_that_is_too_large_keeps_none_behind_it_from_their_room(engine: Engine) -> None:
    engine.arrive("a1", 70)
    engine.arrive("b1", 20, hints=Hints(priority=BATCH))
    engine.arrive("c1", 90)
    engine.arrive("d1", 20)

    assert set(engine.review()) == {"b1", "d1"}
    assert engine.active == "ad"


def test_a_program_of_batch_that_has_waited_for_a_day_keeps_its_memory(engine: Engine) -> None:
    engine.arrive("a1", 80, hints=Hints(priority=BATCH))
    engine.now = 87_001.0
    engine.arrive("b1", 10)
    engine.arrive("c1", 40, hints=Hints(priority=INTERACTIVE))

    assert engine.review() == []
    assert engine.active == "ab"


def test_a_paused_program_of_batch_keeps_its_memory(engine: Engine) -> None:
    engine.arrive("a1", 80, hints=Hints(priority=BATCH))
    engine.run("a1")
    engine.pause("a1")
    engine.grown["a1"] = 80
    engine.arrive("b1", 10)
    engine.arrive("c1", 40)

    assert engine.review() == []
    assert engine.active == "ab"


def starve(engine: Engine) -> None:
    """Let 100 programs end, so that the mean response time is short, and wait for long."""
    engine.now = 1000.0
    for _ in range(100):
        engine.machine.table.statistics.on_ended(0.0, engine.now)
    assert engine.now > STARVING * engine.machine.table.statistics.response_s


@pytest.mark.parametrize(("since_s", "first"), [(1000.0, "c"), (2 * 86400.0, "b")])
def test_a_program_of_batch_starves_a_day_later_than_others(since_s: float, first: str) -> None:
    # With memory that takes so long to fill, none is taken from `a`.
    engine = Engine(machine=make_machine(policy="plas", token_s=1e5))
    engine.arrive("a1", 90)
    engine.arrive("b1", 85, service_s=1000.0, hints=Hints(priority=BATCH))
    starve(engine)
    engine.now = since_s
    engine.arrive("c1", 90)

    engine.review()

    assert engine.admission.memory.inactive.places()[first] == 1


def test_memory_is_taken_for_a_starving_program_before_one_of_batch() -> None:
    engine = Engine(machine=make_machine(idle_s=HOLD_S))
    engine.arrive("a1", 60)
    engine.run("a1")
    engine.grown["a1"] = 60
    engine.arrive("b1", 45, hints=Hints(priority=BATCH))
    engine.now = 1.0
    engine.arrive("c1", 45)
    engine.review()
    starve(engine)

    engine.review(steps=REVIEW_STEPS)

    assert engine.active == "c"
    assert engine.machine.call("b1").is_admitted is False


def test_between_tenants_the_program_that_came_first_is_activated_first() -> None:
    engine = Engine()
    engine.arrive("a1", 90, tenant="x")
    engine.arrive("b1", 80, tenant="plain")
    engine.now = 1.0
    engine.arrive("c1", 80, tenant="urgent", hints=Hints(priority=INTERACTIVE))
    engine.finish("a1")
    engine.machine.end_program("a", engine.now)

    assert engine.review() == ["b1"]


def test_a_standstill_ends_with_the_program_that_came_first() -> None:
    engine = Engine()
    engine.arrive("a1", 90, tenant="x")
    engine.arrive("b1", 95, tenant="plain")
    engine.now = 1.0
    engine.arrive("c1", 95, tenant="urgent", hints=Hints(priority=INTERACTIVE))
    engine.finish("a1", 90)

    assert engine.review() == []
    assert engine.review(after_s=LEAST_HOLD_S) == ["b1"]


@pytest.mark.parametrize("priorities", [(INTERACTIVE, BATCH), (BATCH, INTERACTIVE)])
@pytest.mark.parametrize("names", ["ab", "ba"])
def test_between_tenants_no_priority_keeps_a_parked_program(
    engine: Engine, priorities: tuple[Priority, Priority], names: str
) -> None:
    """Nor does a name: of equal shares the one that was parked last makes way."""
    engine.admission.use_host_memory(lambda program_id, tokens: (1.0, 0.0), 1000.0)
    memory = engine.admission.memory
    for name, priority in zip(names, priorities, strict=True):
        engine.arrive(f"{name}1", 30, tenant=f"tenant {name}", hints=Hints(priority=priority))
        engine.finish(f"{name}1", 30)
        memory.deactivate(memory.active.contexts[name], engine.now)

    assert memory.last_parked().tenant == f"tenant {names[-1]}"


def test_a_priority_changes_no_weight() -> None:
    machine = make_machine()
    urgent = machine.arrive(
        Arrival("u", "u", tenant="urgent", context=Context(0), hints=Hints(priority=INTERACTIVE)), 0.0
    )

    assert urgent.weight == 1.0
    assert machine.shares._shares["urgent"].virtual_s == 0.0
    assert math.isfinite(urgent.key)
