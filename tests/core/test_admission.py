"""Admission by working set, driven through the machine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest

from autellix_backend.core.admission.contexts import fill_blocks
from autellix_backend.core.admission.idle import GAP_SLACK, LEAST_HOLD_S, MIN_GAPS
from autellix_backend.core.admission.review import (
    MAX_PASSED,
    PATIENCE,
    RESCUE_SHARE,
    STARVING,
    STARVING_FILLS,
)
from autellix_backend.core.admission.working_set import KEEP_SHARE, REVIEW_STEPS, WorkingSetAdmission
from autellix_backend.core.arrival import Arrival, Context
from autellix_backend.core.balance.memory import memory_of
from autellix_backend.core.call import Call
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.hints import Hints
from autellix_backend.core.machine import Machine
from autellix_backend.core.priority import Priority
from autellix_backend.core.statistics import MIN_SAMPLES
from autellix_backend.core.table import ProcessTable

CAPACITY = 100
HOLD_S = 10.0
"""The time in which the engine prefills all of the capacity."""


def make_machine(table: ProcessTable | None = None, **settings: Any) -> Machine:
    config: dict[str, Any] = {"policy": "boost", "boost": 0.0, "admission": "working_set", "kv_share": 1.0}
    config |= {"token_s": HOLD_S / CAPACITY, **settings}
    return Machine(SchedulerConfig(**config), table, kv_tokens=CAPACITY)


@dataclass(kw_only=True)
class Engine:
    """A machine with admission, whose calls run from their start to their end without steps."""

    machine: Machine = field(default_factory=make_machine)
    now: float = 0.0
    step: int = 0
    grown: dict[str, int] = field(default_factory=dict)
    """The contexts of running calls that have grown."""
    numbers: Iterator[int] = field(default_factory=lambda: count(100))

    @property
    def admission(self) -> WorkingSetAdmission:
        assert isinstance(self.machine.admission, WorkingSetAdmission)
        return self.machine.admission

    def arrive(self, call_id: str, tokens: int = 0, **facts: Any) -> Call:
        """Have a call arrive at the program named by the first letter of the call."""
        context = Context(
            tokens, facts.pop("shared", 0), facts.pop("prefix", None), facts.pop("prefix_tokens", 0)
        )
        arrival = Arrival(call_id, call_id[0], context=context, **facts)
        return self.machine.arrive(arrival, self.now)

    def run(self, *call_ids: str) -> None:
        for call_id in call_ids:
            self.machine.start(call_id, self.now)

    def pause(self, call_id: str) -> None:
        """Let a call wait for its client, with its context in KV memory."""
        self.machine.pause(call_id, self.now)

    def finish(self, call_id: str, tokens: int = 0) -> None:
        self.machine.finish(call_id, self.now, context_tokens=tokens)
        self.machine.check()

    def review(self, after_s: float = 0.0, steps: int = 0) -> list[str]:
        self.now += after_s
        self.step += steps
        changed = self.machine.review(self.now, self.step, lambda call_id: self.grown.get(call_id, 0))
        self.machine.check()
        return changed

    @property
    def active(self) -> str:
        return "".join(sorted(self.admission.memory.active.contexts))

    @property
    def refused(self) -> list[str]:
        return [call.call_id for call in self.machine.refused()]


@pytest.fixture
def engine() -> Engine:
    return Engine()


def displacing(first: int, grown: int) -> Engine:
    """Return an engine on which a and b run, and a has grown so much that b has become inactive."""
    engine = Engine()
    engine.arrive("a1", first)
    engine.now = 1.0
    engine.arrive("b1", 50)
    engine.run("a1", "b1")
    engine.grown = {"a1": grown, "b1": 50}
    assert engine.review(steps=REVIEW_STEPS) == []
    assert (engine.active, engine.refused) == ("a", [])
    return engine


# Who is active.


def test_calls_are_admitted_while_the_contexts_of_their_programs_fit(engine: Engine) -> None:
    engine.arrive("a1", 60)
    engine.arrive("b1", 40)
    engine.arrive("c1", 1)

    assert (engine.active, engine.refused) == ("ab", ["c1"])
    assert [call.call_id for call in engine.machine] == ["a1", "b1"]
    assert engine.review() == []


@pytest.mark.parametrize(("block_tokens", "active"), [(1, "abcdefgh"), (20, "abcde")])
def test_contexts_fill_whole_blocks(block_tokens: int, active: str) -> None:
    """Eight short contexts fit by their tokens, and five by the blocks that they fill."""
    config = SchedulerConfig(policy="boost", boost=0.0, admission="working_set", kv_share=0.5)
    engine = Engine(machine=Machine(config, kv_tokens=2 * CAPACITY, fill=fill_blocks(block_tokens)))
    for name in "abcdefgh":
        engine.arrive(f"{name}1", 12)
    assert (engine.review(), engine.active) == ([], active)

    # What evicting them costs is the prefill of their tokens.
    assert {context.length for context in engine.admission.memory.active.contexts.values()} == {12}


def test_a_shared_prefix_fills_its_blocks_once() -> None:
    config = SchedulerConfig(policy="boost", boost=0.0, admission="working_set", kv_share=0.5)
    engine = Engine(machine=Machine(config, kv_tokens=2 * CAPACITY, fill=fill_blocks(20)))
    for name in "ab":
        engine.arrive(f"{name}1", 45, prefix="tools", prefix_tokens=40)

    assert engine.admission.memory.active.tokens == 40 + 2 * 20
    assert engine.admission.memory.active.contexts["a"].needed_tokens == 60


def test_a_program_waits_until_another_has_ended(engine: Engine) -> None:
    engine.arrive("a1", 60)
    engine.arrive("busy", 10)
    engine.arrive("c1", 60)
    engine.finish("a1", 60)
    engine.review()
    assert engine.refused == ["c1"]

    engine.machine.end_program("a", engine.now)

    assert engine.review() == ["c1"]
    assert (engine.active, engine.refused) == ("bc", [])


def test_a_program_that_ends_with_its_last_call_leaves_its_memory(engine: Engine) -> None:
    engine.arrive("a1", 60)
    engine.arrive("a2", 60, shared=60)
    engine.arrive("b1", 60)
    engine.machine.end_program("a", engine.now)
    engine.finish("a1", 60)
    assert (engine.review(), engine.active) == ([], "a")

    engine.finish("a2", 60)

    assert engine.review() == ["b1"]


def test_a_program_between_two_calls_keeps_its_memory(engine: Engine) -> None:
    engine.arrive("a1", 60)
    engine.finish("a1", 70)
    engine.arrive("b1", 40)

    assert (engine.active, engine.refused) == ("a", ["b1"])
    assert engine.admission.memory.active.tokens == 70


def test_an_aborted_call_leaves_the_context_of_the_call_before_it(engine: Engine) -> None:
    engine.arrive("a1", 60)
    engine.finish("a1", 70)
    engine.arrive("a2", 80)
    engine.machine.abort("a2", engine.now)

    assert engine.admission.memory.active.tokens == 70


def test_one_program_is_active_however_large(engine: Engine) -> None:
    engine.arrive("a1", 10 * CAPACITY)
    engine.arrive("b1", 1)

    assert (engine.review(), engine.active) == ([], "a")
    engine.finish("a1")
    assert engine.review() == ["b1"]


def test_among_equal_keys_the_first_to_arrive_is_the_first_to_run_and_the_last_to_be_displaced(
    engine: Engine,
) -> None:
    """As where all programs of a batch arrive at once."""
    for name in "abcdef":
        engine.arrive(f"{name}1", 50)
    engine.review()
    assert engine.active == "ab"
    assert engine.admission.memory.inactive.places() == {"c": 1, "d": 2, "e": 3, "f": 4}

    engine.run("a1")
    engine.grown["a1"] = 51
    engine.review(steps=REVIEW_STEPS)

    assert engine.active == "a"
    assert next(iter(engine.admission.memory.inactive.places())) == "b"


def test_a_call_of_an_active_program_is_admitted_though_it_exceeds_memory_until_the_review(
    engine: Engine,
) -> None:
    engine.arrive("a1", 40)
    engine.now = 1.0
    engine.arrive("b1", 40)
    engine.arrive("a2", 90)
    assert (engine.active, engine.refused) == ("ab", [])

    assert engine.review() == ["b1"]
    assert (engine.active, engine.refused) == ("a", ["b1"])


def test_contexts_are_measured_as_they_grow(engine: Engine) -> None:
    engine.arrive("a1", 50)
    engine.now = 1.0
    engine.arrive("b1", 50)
    engine.run("a1")
    engine.review()
    engine.grown["a1"] = 60
    assert engine.review(steps=REVIEW_STEPS - 1) == []
    assert engine.admission.steps_to_review(engine.step) == 1

    assert engine.review(steps=1) == ["b1"]
    assert engine.admission.steps_to_review(engine.step) == 1
    assert engine.admission.take_to_keep() == []
    assert engine.admission.steps_to_review(engine.step) == REVIEW_STEPS


def test_the_cached_blocks_of_idle_active_programs_outlive_those_that_others_have_freed(
    engine: Engine,
) -> None:
    for number, name in enumerate("abcd"):
        engine.now = float(number)
        engine.arrive(f"{name}1", 20)
    for name in "bad":
        engine.now += 1.0
        engine.finish(f"{name}1", 20)
    assert engine.admission.take_to_keep() == []

    engine.machine.end_program("d", engine.now)

    assert engine.admission.take_to_keep() == ["b", "a"]
    assert engine.admission.take_to_keep() == []


def pausing(first: int = 60) -> Engine:
    """Return an engine on which a has answered and waits for its client, and b does not fit beside it."""
    engine = Engine()
    engine.arrive("a1", first)
    engine.arrive("b1", 50)
    engine.run("a1")
    engine.grown["a1"] = first
    engine.pause("a1")
    return engine


def test_a_paused_program_stops_no_engine() -> None:
    """Where no other program is active, the first that waits is, beside what the paused one holds."""
    engine = pausing()
    assert engine.refused == ["b1"]
    assert engine.review(steps=REVIEW_STEPS) == ["b1"]
    assert (engine.active, engine.admission.memory.active.tokens) == ("ab", 110)
    engine.run("b1")
    engine.finish("b1")
    engine.machine.resume("a1", engine.now)
    engine.run("a1")
    assert engine.machine.call("a1").preemptions == 0
    engine.finish("a1")


def test_a_paused_program_keeps_its_memory_and_others_make_room() -> None:
    """Deactivating it would free nothing, whatever its key and however long it is paused."""
    engine = pausing()
    engine.review()
    engine.arrive("c1", 30)
    engine.run("b1")
    engine.grown["b1"] = 50
    engine.review(steps=REVIEW_STEPS)
    assert (engine.active, engine.refused) == ("ab", ["c1"])
    engine.review(after_s=1e4, steps=REVIEW_STEPS)
    assert (engine.active, engine.refused) == ("ac", [])


def test_memory_that_a_paused_call_of_an_inactive_program_holds_is_taken() -> None:
    engine = displacing(30, 80)
    engine.pause("b1")
    engine.grown["b1"] = 30
    engine.machine.end_program("a", engine.now)
    engine.finish("a1")
    engine.arrive("c1", 90)
    engine.review(steps=REVIEW_STEPS)
    assert engine.admission.memory.find("b") is not None
    assert engine.active == "bc"


def test_a_call_that_comes_with_its_memory_is_admitted_and_counts(engine: Engine) -> None:
    """Another engine keeps its blocks until this one has fetched them; its program waits like others."""
    engine.arrive("a1", 60)
    assert not engine.arrive("b1", 50).is_admitted
    assert engine.arrive("b2", 45, is_pinned=True).is_admitted
    engine.machine.check()
    engine.grown["b2"] = 45
    assert engine.admission.memory.leaving.tokens == 45
    engine.arrive("c1", 30)
    engine.review(steps=REVIEW_STEPS)
    assert engine.refused == ["b1", "c1"]
    engine.machine.abort("b2", engine.now)
    engine.machine.abort("b1", engine.now)
    assert engine.review(steps=REVIEW_STEPS) == ["c1"]


def test_waiting_for_a_client_is_no_waiting(engine: Engine) -> None:
    """No time counts as waiting while a call is paused, nor its pause as a preemption."""
    call = engine.arrive("a1", 10)
    engine.now = 2.0
    engine.run("a1")
    engine.now = 3.0
    engine.pause("a1")
    engine.now = 50.0
    assert call.wait_at(engine.now) == 2.0
    engine.machine.resume("a1", engine.now)
    engine.now = 51.0
    assert call.wait_at(engine.now) == 3.0
    engine.pause("a1")
    engine.now = 90.0
    record = engine.machine.abort("a1", engine.now)
    assert (record.wait_s, record.preemptions) == (3.0, 0)


def test_lost_contexts_leave_their_memory(engine: Engine) -> None:
    """Idle programs give theirs up; of one with a call, nothing is left of the calls before."""
    for call_id, tokens in (("a1", 50), ("b1", 30)):
        engine.arrive(call_id, tokens)
        engine.run(call_id)
        engine.finish(call_id, tokens)
    engine.arrive("b2", 40, shared=30)
    engine.arrive("c1", 60)
    assert engine.refused == ["c1"]
    engine.machine.admission.lose_contexts()
    assert engine.review() == ["c1"]
    assert engine.active == "bc"
    engine.machine.abort("b2", engine.now)
    assert engine.admission.memory.active.tokens == 60


def test_the_order_of_eviction_is_left_alone_for_a_few_freed_blocks(engine: Engine) -> None:
    engine.arrive("a1", 20)
    engine.arrive("b1", int(KEEP_SHARE * CAPACITY) - 1)
    engine.finish("a1", 20)
    engine.finish("b1", 1)

    engine.machine.end_program("b", engine.now)

    assert engine.admission.take_to_keep() == []


def test_a_change_is_reviewed_at_the_next_step(engine: Engine) -> None:
    engine.review()
    engine.arrive("a1", 60)
    assert not engine.admission.is_due(engine.step)
    engine.arrive("b1", 60)

    assert engine.admission.is_due(engine.step)
    assert engine.admission.steps_to_review(engine.step) == 1


def test_a_running_call_of_a_displaced_program_runs_on() -> None:
    engine = displacing(50, 80)

    engine.arrive("b2", 50)

    assert engine.refused == ["b2"]
    engine.finish("b1", 50)
    assert engine.refused == ["b2"]


def test_a_preempted_call_of_a_displaced_program_waits_for_its_program() -> None:
    engine = displacing(50, 80)

    engine.machine.preempt("b1", engine.now)

    assert engine.refused == ["b1"]
    engine.machine.check()
    engine.finish("a1")
    engine.machine.end_program("a", engine.now)
    assert engine.review() == ["b1"]


def test_a_call_that_is_let_in_again_goes_on_to_its_end() -> None:
    engine = displacing(50, 80)
    engine.machine.preempt("b1", engine.now)
    for _ in range(2):
        engine.machine.readmit("b1", engine.now)
        engine.machine.check()

    assert engine.refused == []
    engine.run("b1")
    engine.machine.preempt("b1", engine.now)
    assert engine.refused == []
    assert engine.review() == []
    engine.finish("b1")
    engine.machine.check()


@pytest.mark.parametrize("tenant", ["", "other"])
def test_a_step_that_ends_after_its_call_was_refused_is_charged_to_the_call(tenant: str) -> None:
    """Its tenant may have been forgotten since, where it has no other call."""
    engine = Engine(machine=make_machine(policy="plas", bounds=(1.0,)))
    engine.arrive("a1", 50)
    engine.arrive("b1", 50, tenant=tenant)
    engine.run("a1", "b1")
    engine.machine.charge("b1", 0.5, 1.0)
    engine.grown = {"a1": 50, "b1": 80}
    engine.review(steps=REVIEW_STEPS)
    engine.machine.preempt("b1", 1.0)
    assert engine.refused == ["b1"]

    engine.machine.charge("b1", 3.0, 2.0)

    assert engine.machine.tick(2.0) == []
    assert engine.machine.call("b1").service_s == 3.5
    engine.machine.check()


def test_an_aborted_call_of_a_waiting_program_leaves_nothing(engine: Engine) -> None:
    engine.arrive("a1", 90)
    engine.arrive("b1", 90)
    engine.arrive("b2", 90)
    engine.machine.abort("b1", engine.now)
    assert (engine.refused, len(engine.admission.memory.inactive)) == (["b2"], 1)

    engine.machine.abort("b2", engine.now)

    assert (engine.refused, len(engine.admission.memory.inactive)) == ([], 0)
    assert engine.admission.memory.find("b") is None
    engine.machine.check()


def test_a_program_may_come_back_after_its_end(engine: Engine) -> None:
    engine.arrive("a1", 60)
    engine.machine.end_program("a", engine.now)
    engine.arrive("a2", 60)
    engine.finish("a1", 60)
    engine.finish("a2", 60)
    assert engine.active == "a"

    engine.machine.end_program("a", engine.now)
    assert engine.active == ""
    engine.arrive("a3", 60)
    assert (engine.active, engine.admission.memory.active.tokens) == ("a", 60)


def test_forgetting_a_program_lets_its_active_calls_go_on(engine: Engine) -> None:
    engine.arrive("a1", 60)
    engine.machine.forget_program("a")
    engine.machine.forget_program("unknown")
    engine.machine.admission.move("unknown")
    assert engine.active == "a"

    engine.finish("a1", 60)
    engine.machine.forget_program("a")

    assert engine.active == ""


def test_expired_programs_leave_their_memory(engine: Engine) -> None:
    engine.arrive("a1", 60)
    engine.finish("a1", 60)
    engine.arrive("b1", 60)

    engine.machine.expire(100.0, 60.0)

    assert engine.active == ""
    assert engine.review() == ["b1"]


def test_machines_over_one_table_keep_the_memory_of_their_own_calls() -> None:
    table = ProcessTable()
    one, other = Engine(machine=make_machine(table)), Engine(machine=make_machine(table))
    one.arrive("a1", 60)
    other.arrive("a2", 30)
    one.machine.end_program("a", 1.0)
    other.machine.forget_program("a")
    one.finish("a1", 60)
    assert (one.active, other.active) == ("", "a")

    other.finish("a2", 30)

    assert other.active == ""


def test_without_limits_there_is_no_admission() -> None:
    config = SchedulerConfig(policy="boost", admission="working_set")
    assert Machine(config).admission.memory is None
    assert Machine(SchedulerConfig(policy="boost", admission="none"), kv_tokens=100).admission.memory is None
    machine = Machine(config)
    machine.arrive(Arrival("a1", "a"), 0.0)
    machine.forget_program("a")
    machine.admission.lose_contexts()
    assert machine.review(0.0, 0, lambda _: 0) == []
    assert list(machine.refused()) == []


# What contexts need.


def test_a_prefix_that_programs_share_counts_once(engine: Engine) -> None:
    for name in "abcdef":
        engine.arrive(f"{name}1", 60, prefix="tools", prefix_tokens=50)

    assert engine.active == "abcde"
    assert engine.admission.memory.active.tokens == 50 + 5 * 10


def test_a_prefix_that_a_later_call_names_is_shared_from_then_on(engine: Engine) -> None:
    engine.arrive("a1", 60)
    engine.finish("a1", 60)
    engine.arrive("b1", 40, prefix="tools", prefix_tokens=30)
    engine.arrive("a2", 60, prefix="tools", prefix_tokens=30)

    assert engine.admission.memory.active.tokens == 30 + 10 + 30
    engine.machine.check()


def test_the_prefix_of_a_waiting_program_may_change(engine: Engine) -> None:
    engine.arrive("a1", 90, prefix="tools", prefix_tokens=80)
    engine.arrive("b1", 82)
    engine.arrive("b2", 83, prefix="tools", prefix_tokens=80)

    assert engine.review() == ["b1", "b2"]
    assert engine.admission.memory.active.tokens == 80 + 10 + (2 + 3)


def test_a_call_without_a_prefix_leaves_that_of_its_program(engine: Engine) -> None:
    engine.arrive("a1", 60, prefix="tools", prefix_tokens=50)
    engine.finish("a1", 60)
    engine.arrive("a2", 70)

    context = engine.admission.memory.find("a")
    assert context is not None
    assert (context.prefix, engine.admission.memory.active.tokens) == ("tools", 70)


def test_programs_whose_contexts_are_unknown_need_nothing(engine: Engine) -> None:
    engine.arrive("a1", CAPACITY)
    engine.machine.arrive(Arrival("b1", "b"), 0.0)

    assert engine.active == "ab"


def test_a_program_that_has_left_comes_back_as_another() -> None:
    """What its earlier calls held is forgotten, although nothing was reviewed meanwhile."""
    engine = displacing(30, 80)
    engine.finish("b1")
    engine.arrive("b2", 40, is_pinned=True)

    assert engine.admission.memory.leaving.tokens == 40
    assert engine.review(steps=REVIEW_STEPS) == []


# Passing in the order of activation.


def waiting_behind(engine: Engine, response_s: float) -> None:
    """Have `a` run since long ago, and `b` wait from now on because it does not fit beside it."""
    engine.arrive("a1", 60)
    engine.now = response_s
    engine.arrive("b1", 90)
    engine.review()


def test_a_program_that_fits_passes_one_that_does_not(engine: Engine) -> None:
    waiting_behind(engine, 10.0)
    engine.now = 11.0
    engine.arrive("c1", 40)

    assert engine.review() == ["c1"]


def test_a_program_that_has_waited_for_long_is_not_passed() -> None:
    engine = Engine(machine=make_machine(idle_s=1e9))
    waiting_behind(engine, 1.0)
    engine.now = 1000.0
    statistics = engine.machine.table.statistics
    for _ in range(6):
        statistics.on_ended(0.0, engine.now)
    engine.arrive("c1", 40)
    assert engine.now - 1.0 > PATIENCE * statistics.response_s

    assert engine.review() == []
    assert engine.refused == ["b1", "c1"]


def test_before_anything_was_measured_no_program_is_passed(engine: Engine) -> None:
    statistics = engine.machine.table.statistics
    engine.arrive("a1", 60)
    engine.arrive("b1", 90)
    engine.arrive("c1", 40)
    engine.now = 1e-9
    assert statistics.response_s == 0.0

    assert engine.review() == []


def test_the_programs_that_are_passed_in_one_review_are_bounded(engine: Engine) -> None:
    waiting_behind(engine, 100.0)
    for index in range(MAX_PASSED):
        engine.machine.arrive(Arrival(f"x{index}", f"x{index}", context=Context(90)), engine.now)
    engine.arrive("c1", 40)
    assert engine.review() == []

    engine.machine.abort("x0", engine.now)

    assert engine.review() == ["c1"]


@pytest.mark.parametrize("policy", ["plas", "boost"])
def test_a_program_that_starves_goes_first_whatever_its_key(policy: str) -> None:
    # With memory that takes so long to fill, none is taken from `a`.
    engine = Engine(machine=make_machine(policy=policy, token_s=100.0))
    engine.arrive("a1", 90)
    engine.arrive("b1", 90, service_s=1000.0)
    engine.now = 1000.0
    for _ in range(100):
        engine.machine.table.statistics.on_ended(0.0, engine.now)
    engine.arrive("c1", 90, age_s=5000.0)
    assert engine.now > STARVING * engine.machine.table.statistics.response_s
    engine.review()
    assert engine.admission.memory.inactive.places() == {"b": 1, "c": 2}

    engine.finish("a1")
    engine.machine.end_program("a", engine.now)

    assert engine.review() == ["b1"]


# Idle programs.


@pytest.mark.parametrize(("settings", "kept_s"), [({}, HOLD_S), ({"idle_s": 3.0}, 3.0)])
def test_an_idle_program_makes_room_after_the_time_that_its_context_is_worth(
    settings: dict[str, Any], kept_s: float
) -> None:
    """Or after the longest idle time that is configured."""
    engine = Engine(machine=make_machine(**settings))
    engine.arrive("a1", 60)
    engine.finish("a1", 60)
    engine.arrive("busy", 10)
    engine.arrive("c1", 60)

    assert engine.review(after_s=kept_s, steps=REVIEW_STEPS) == []
    assert engine.review(after_s=1e-6, steps=REVIEW_STEPS) == ["c1"]
    assert engine.active == "bc"


def test_idle_programs_of_one_class_make_room_alike(engine: Engine) -> None:
    for call_id in ("a1", "b1"):
        engine.arrive(call_id, 30)
        engine.finish(call_id, 30)
    engine.arrive("c1", 10)
    engine.arrive("d1", 60)

    assert engine.review(after_s=HOLD_S, steps=REVIEW_STEPS) == []
    assert engine.review(after_s=1e-6, steps=REVIEW_STEPS) == ["d1"]
    assert engine.active == "cd"


def test_an_idle_program_makes_room_for_one_that_grows(engine: Engine) -> None:
    engine.arrive("a1", 30)
    engine.run("a1")
    engine.arrive("b1", 60)
    engine.finish("b1", 60)
    engine.grown["a1"] = 60

    assert engine.review(steps=REVIEW_STEPS) == []
    assert engine.active == "a"


@pytest.mark.parametrize(
    ("share", "load_s", "kept_s"),
    [
        (1.0, 2.0, 2.0),
        (0.5, 2.0, HOLD_S / 2 + 2.0),
        (0.0, 0.0, HOLD_S - LEAST_HOLD_S),
    ],
)
def test_what_would_be_loaded_is_kept_for_as_long_as_its_load_takes(
    engine: Engine, share: float, load_s: float, kept_s: float
) -> None:
    """The rest as long as without host memory, and never longer."""
    asked: list[tuple[str, int]] = []

    def host_loads(program_id: str, tokens: int) -> tuple[float, float]:
        asked.append((program_id, tokens))
        return share, load_s

    engine.admission.use_host_memory(host_loads, math.inf)
    engine.arrive("a1", 60)
    engine.finish("a1", 60)
    engine.arrive("busy", 10)
    engine.arrive("c1", 60)

    assert engine.review(after_s=kept_s + LEAST_HOLD_S, steps=REVIEW_STEPS) == []
    assert engine.review(after_s=1e-6, steps=REVIEW_STEPS) == ["c1"]
    assert set(asked) == {("a", 60)}


def parking(host_tokens: float) -> Engine:
    """Return an engine with host memory whose program a is parked, and on which b is active in its place."""
    engine = Engine()
    engine.admission.use_host_memory(lambda program_id, tokens: (1.0, 0.0), host_tokens)
    engine.arrive("a1", 60)
    engine.finish("a1", 60)
    engine.arrive("busy", 10)
    engine.arrive("c1", 60)
    engine.review(after_s=2 * LEAST_HOLD_S, steps=REVIEW_STEPS)
    return engine


def test_with_host_memory_contexts_may_fill_all_of_the_memory() -> None:
    """Without it, a part is left for what they grow by."""
    engine = Engine(machine=make_machine(kv_share=0.9))
    engine.arrive("a1", 60)
    engine.arrive("b1", 40)
    assert engine.active == "a"

    engine.admission.use_host_memory(lambda program_id, tokens: (1.0, 0.0), 2 * CAPACITY)

    assert engine.review(steps=REVIEW_STEPS) == ["b1"]


def parked(engine: Engine) -> str:
    return "".join(sorted(engine.admission.memory.parked.contexts))


@pytest.mark.parametrize(("host_tokens", "active"), [(2 * CAPACITY, "bcn"), (2 * CAPACITY - 1, "bc")])
def test_beside_parked_programs_the_share_of_host_memory_may_be_filled(host_tokens: int, active: str) -> None:
    """To the last token: 70 active ones, 60 parked ones and 30 new ones are 80 % of 200."""
    engine = parking(2 * CAPACITY)
    engine.admission.memory.host_tokens = host_tokens
    engine.arrive("n1", 30)
    assert engine.active == active


@pytest.mark.parametrize(("host_tokens", "expected"), [(130, "a"), (129, "")])
def test_parked_programs_stay_as_long_as_host_memory_holds_all_contexts(
    host_tokens: int, expected: str
) -> None:
    engine = parking(2 * CAPACITY)
    engine.admission.memory.host_tokens = host_tokens
    engine.review(steps=REVIEW_STEPS)
    assert parked(engine) == expected


def test_an_inactive_program_is_parked_where_host_memory_has_room() -> None:
    """So it gives its place to another at once, and comes back before a newcomer with a better key."""
    engine = parking(2 * CAPACITY)
    assert (engine.active, parked(engine)) == ("bc", "a")
    engine.arrive("n1", 60, age_s=1000.0)
    engine.arrive("a2", 60)
    engine.finish("c1", 60)

    assert engine.review(after_s=2 * LEAST_HOLD_S, steps=REVIEW_STEPS) == ["a2"]
    assert (engine.active, parked(engine), engine.refused) == ("ab", "c", ["n1"])


def test_the_balancer_counts_parked_programs_as_present() -> None:
    """They return without the end of another; newcomers wait for room in host memory."""
    engine = parking(2 * CAPACITY)
    engine.arrive("a2", 60)
    engine.arrive("n1", 60)

    told = memory_of(engine.machine, engine.now)

    assert told is not None
    assert (told.capacity_tokens, told.active_tokens, told.active_programs) == (160.0, 60 + 10 + 60, 3)
    assert (told.known, told.inactive) == ({"a", "b", "c", "n"}, {"n"})
    assert (told.inactive_tokens, told.inactive_calls) == (60, 1)
    assert told.wait_s(30) == 0.0


def test_what_host_memory_has_no_room_for_keeps_its_memory_in_the_engine() -> None:
    """As long as without host memory."""
    engine = parking(CAPACITY / 2)
    assert (engine.active, parked(engine)) == ("ab", "")
    assert engine.review(after_s=HOLD_S, steps=REVIEW_STEPS) == ["c1"]
    assert (engine.active, parked(engine)) == ("bc", "")


def test_a_newcomer_waits_until_parked_programs_end_or_were_idle_for_long() -> None:
    engine = parking(1.7 * CAPACITY)
    engine.arrive("n1", 20)
    assert engine.review(steps=REVIEW_STEPS) == []

    assert engine.review(after_s=HOLD_S - 1.0, steps=REVIEW_STEPS) == []
    assert engine.review(after_s=1.0, steps=REVIEW_STEPS) == ["n1"]
    assert parked(engine) == ""


def test_a_parked_program_that_ends_makes_room_in_host_memory() -> None:
    engine = parking(1.7 * CAPACITY)
    engine.arrive("n1", 20)
    engine.machine.end_program("a", engine.now)

    assert engine.review(steps=REVIEW_STEPS) == ["n1"]
    assert parked(engine) == ""
    assert engine.admission.take_stored() == {"a": False, "b": True, "c": True, "n": True}


def test_parked_programs_are_given_up_when_contexts_outgrow_host_memory() -> None:
    engine = parking(1.63 * CAPACITY)
    engine.run("busy", "c1")
    assert engine.admission.take_stored() == {"a": True, "b": True, "c": True}
    engine.arrive("a2", 80)
    engine.grown = {"busy": 40, "c1": 60}
    engine.review(steps=REVIEW_STEPS)

    assert (engine.active, parked(engine), engine.refused) == ("bc", "", ["a2"])
    assert engine.admission.take_stored() == {"a": False}


def test_a_tenant_takes_host_memory_from_one_that_has_more_parked() -> None:
    """Not from itself: there its programs have their places already."""
    engine = parking(1.7 * CAPACITY)
    engine.arrive("a2", 60)
    engine.arrive("n1", 20)
    engine.review(after_s=HOLD_S + 1.0, steps=REVIEW_STEPS)
    assert (parked(engine), engine.refused) == ("a", ["a2", "n1"])
    engine.arrive("o1", 20, tenant="other")

    assert engine.review(after_s=HOLD_S + 1.0, steps=REVIEW_STEPS) == ["o1"]
    assert parked(engine) == ""


def test_memory_for_a_starving_program_is_taken_from_host_memory_too() -> None:
    engine = parking(1.7 * CAPACITY)
    engine.arrive("n1", 60)
    engine.arrive("a2", 60)
    for _ in range(40):
        engine.review(after_s=HOLD_S, steps=REVIEW_STEPS)
        if "n" in engine.active:
            break

    assert "n" in engine.active
    assert engine.admission.memory.keeps_parked


def test_a_reset_of_the_prefix_cache_gives_up_parked_programs() -> None:
    engine = parking(2 * CAPACITY)
    engine.arrive("a2", 60)
    engine.admission.lose_contexts()
    engine.machine.check()

    assert (parked(engine), engine.refused) == ("", ["a2"])


def test_a_parked_program_grows_with_its_next_call() -> None:
    engine = parking(2 * CAPACITY)
    engine.arrive("a2", 80, prefix="tools", prefix_tokens=20)

    memory = engine.admission.memory
    assert (memory.parked.tokens, parked(engine)) == (80, "a")
    engine.machine.abort("a2", engine.now)
    engine.machine.check()
    assert parked(engine) == "a"


def test_a_parked_program_without_a_call_has_its_present_place() -> None:
    engine = parking(2 * CAPACITY)
    program = engine.machine.table["a"]
    program.created_s -= 100.0
    engine.admission.move("a")

    context = engine.admission.memory.find("a")
    assert context is not None
    assert context.place == engine.machine.places.of(program)


def test_no_idle_program_makes_room_while_nobody_waits(engine: Engine) -> None:
    engine.arrive("a1", 60)
    engine.finish("a1", 60)
    engine.review(after_s=1e6, steps=REVIEW_STEPS)

    assert engine.active == "a"


@pytest.mark.parametrize(("gap_s", "kept_s"), [(1.0, GAP_SLACK), (9.0, 9.0 * GAP_SLACK), (11.0, 0.0)])
def test_an_idle_program_is_kept_for_the_gaps_of_its_class_if_they_cost_less_than_its_prefill(
    gap_s: float, kept_s: float
) -> None:
    engine = Engine(machine=make_machine(idle_s=1e9))
    for index in range(MIN_GAPS + 1):
        engine.arrive(f"a{index}", 40, hints=Hints(class_name="coder"))
        engine.finish(f"a{index}", 40)
        engine.now += gap_s
    engine.machine.end_program("a", engine.now)
    # The busy program keeps the engine from standing still.
    engine.arrive("c1", 10)
    engine.arrive("b1", 60, hints=Hints(class_name="coder"))
    engine.finish("b1", 60)
    engine.arrive("d1", 60)

    assert engine.review() == []
    if kept_s:
        assert engine.review(after_s=kept_s - 1e-6, steps=REVIEW_STEPS) == []
    assert engine.review(after_s=2e-6, steps=REVIEW_STEPS) == ["d1"]


@pytest.mark.parametrize(
    ("return_s", "kept_s"), [(0.0, HOLD_S), (HOLD_S, HOLD_S), (HOLD_S + 1e-6, 0.0), (1e9, 0.0)]
)
@pytest.mark.parametrize("gap_s", [None, 1.0, 19.0])
def test_an_expected_return_decides_in_place_of_the_gaps_of_the_class(
    return_s: float, kept_s: float, gap_s: float | None
) -> None:
    """It keeps memory for as long as a class without known gaps does, or not at all."""
    engine = Engine(machine=make_machine(idle_s=1e9))
    for _ in range(0 if gap_s is None else MIN_GAPS):
        engine.admission.idle.gaps.add("", "coder", gap_s or 0.0)
    engine.arrive("c1", 10)
    engine.arrive("b1", 60, hints=Hints(class_name="coder", return_s=return_s))
    engine.finish("b1", 60)
    engine.arrive("d1", 60)

    assert engine.review() == []
    if kept_s:
        assert engine.review(after_s=kept_s, steps=REVIEW_STEPS) == []
    assert engine.review(after_s=1e-6, steps=REVIEW_STEPS) == ["d1"]


@pytest.mark.parametrize(
    ("hints", "kept_s"),
    [
        (Hints(retain_s=0.0), 0.0),
        (Hints(retain_s=HOLD_S / 2), HOLD_S / 2),
        (Hints(retain_s=1e9), HOLD_S),
        (Hints(retain_s=HOLD_S / 2, return_s=1.0), HOLD_S / 2),
        (Hints(retain_s=1e9, return_s=1e9), 0.0),
    ],
)
def test_a_stated_retention_is_kept_up_to_what_a_context_is_worth(hints: Hints, kept_s: float) -> None:
    """A client that asks for more gets no more than one whose gaps are unknown."""
    engine = Engine(machine=make_machine(idle_s=1e9))
    engine.arrive("c1", 10)
    engine.arrive("b1", 60, hints=hints)
    engine.finish("b1", 60)
    engine.arrive("d1", 60)

    assert engine.review() == []
    if kept_s:
        assert engine.review(after_s=kept_s, steps=REVIEW_STEPS) == []
    assert engine.review(after_s=1e-6, steps=REVIEW_STEPS) == ["d1"]


def test_a_return_expected_beyond_the_longest_idle_time_keeps_nothing() -> None:
    engine = Engine(machine=make_machine(idle_s=3.0))
    assert engine.machine.admission.hold_s == 3.0
    engine.arrive("c1", 10)
    engine.arrive("b1", 60, hints=Hints(return_s=3.1))
    engine.finish("b1", 60)
    engine.arrive("d1", 60)

    assert engine.review(after_s=1e-6, steps=REVIEW_STEPS) == ["d1"]


def test_an_expected_return_counts_for_the_gap_after_its_call_alone(engine: Engine) -> None:
    engine.arrive("c1", 10)
    engine.arrive("b1", 60, hints=Hints(return_s=1e9))
    engine.arrive("b2", 60)
    engine.finish("b1", 60)
    engine.finish("b2", 60)
    engine.arrive("d1", 60)

    assert engine.review(after_s=HOLD_S, steps=REVIEW_STEPS) == []
    assert engine.review(after_s=1e-6, steps=REVIEW_STEPS) == ["d1"]


def test_without_admission_nothing_is_kept() -> None:
    assert Machine(SchedulerConfig(policy="fcfs")).admission.hold_s is None


def test_a_gap_counts_though_the_program_has_lost_its_memory_meanwhile() -> None:
    engine = Engine(machine=make_machine(idle_s=1.0))
    gap_s = HOLD_S / 2
    for index in range(MIN_GAPS + 1):
        engine.arrive(f"a{index}", 60, hints=Hints(class_name="coder"))
        engine.finish(f"a{index}", 60)
        engine.arrive(f"b{index}", 60)
        engine.review(after_s=gap_s)
        assert engine.active == "b"
        engine.finish(f"b{index}")
        engine.machine.end_program("b", engine.now)

    found_s = engine.admission.idle.gaps.cheapest_hold_s("", "coder", HOLD_S)
    assert found_s == pytest.approx(GAP_SLACK * gap_s)


def test_simultaneous_calls_have_no_gap() -> None:
    engine = Engine()
    for index in range(MIN_GAPS + 2):
        engine.arrive(f"a{index}", 1, hints=Hints(class_name="coder"))
        engine.now += 1.0
        if index % 2:
            engine.finish(f"a{index - 1}", 1)

    assert engine.admission.idle.gaps.cheapest_hold_s("", "coder", HOLD_S) is None


# Standstill.


def test_where_only_idle_programs_are_active_the_longest_idle_ones_make_room(engine: Engine) -> None:
    for place, name in enumerate("abc"):
        engine.now = float(place)
        engine.arrive(f"{name}1", 30)
        engine.finish(f"{name}1", 30)
    engine.arrive("d1", 60)

    assert engine.review() == []
    assert engine.review(after_s=LEAST_HOLD_S) == ["d1"]
    assert engine.active == "cd"


def test_one_of_them_that_returns_in_a_moment_goes_on(engine: Engine) -> None:
    engine.arrive("a1", 60)
    engine.finish("a1", 60)
    engine.arrive("b1", 60)
    assert engine.review() == []
    assert engine.admission.wake_s == engine.now + LEAST_HOLD_S

    engine.arrive("a2", 60, shared=60)

    assert engine.review(after_s=LEAST_HOLD_S) == []
    assert (engine.active, engine.refused) == ("a", ["b1"])
    assert engine.admission.wake_s == math.inf


@pytest.mark.parametrize(("priority", "still_s"), [(Priority.DEFAULT, 0.01), (Priority.BATCH, 0.06)])
def test_the_engine_stands_still_no_longer_than_what_is_displaced_takes_to_prefill(
    priority: Priority, still_s: float
) -> None:
    """Here two of the sixty tokens of one and none of the other; ten more by a program of batch."""
    engine = Engine(machine=make_machine(token_s=0.005))
    for call_id, tokens in (("a1", 60), ("b1", 32)):
        engine.arrive(call_id, tokens)
        engine.finish(call_id, tokens)
    engine.arrive("c1", 10, hints=Hints(priority=priority))

    assert engine.review(after_s=still_s - 0.0001) == []
    assert engine.review(after_s=0.0002) == ["c1"]
    assert engine.active == "bc"


@pytest.mark.parametrize(
    ("gaps_s", "idle_s", "still_s"),
    [
        ([1.0] * MIN_GAPS + [40.0], 120.0, 5.0),
        ([20.0] * MIN_GAPS, 120.0, LEAST_HOLD_S),
        ([1.0] * (MIN_GAPS - 2) + [40.0], 120.0, LEAST_HOLD_S),
        ([1.0] * MIN_GAPS + [40.0], 3.0, 3.0),
    ],
)
def test_the_engine_waits_for_half_of_what_displacing_costs_where_that_is_more_than_a_gap(
    gaps_s: list[float], idle_s: float, still_s: float
) -> None:
    """Ten seconds, to restore a third of a context; for a moment while gaps are unknown."""
    engine = Engine(machine=make_machine(token_s=0.5, idle_s=idle_s))
    for index, gap_s in enumerate([0.0, *gaps_s]):
        engine.now += gap_s
        engine.arrive(f"a{index}", 60, shared=60 if index else 0, hints=Hints(class_name="coder"))
        engine.review()
        engine.finish(f"a{index}", 60)
    engine.arrive("b1", 60)

    assert engine.review() == []
    assert engine.admission.wake_s == pytest.approx(engine.now + still_s)
    assert engine.review(after_s=still_s + 0.01) == ["b1"]


def test_what_displacing_costs_is_what_prefill_adds_to_steps() -> None:
    """A tenth of what the same tokens cost as work, so the engine waits for a tenth of the time."""
    engine = Engine(machine=make_machine(token_s=0.5))
    for number in range(2 * MIN_SAMPLES):
        prefilled = number % 2 * 100
        engine.machine.observe_step(prefilled or 2, 5.0 + 0.05 * prefilled, prefilled=prefilled)
    for index in range(MIN_GAPS + 1):
        engine.now += 0.1
        engine.arrive(f"a{index}", 60, shared=60 if index else 0, hints=Hints(class_name="coder"))
        engine.review()
        engine.finish(f"a{index}", 60)
    engine.arrive("b1", 60)

    assert engine.review() == []
    assert engine.admission.wake_s == pytest.approx(engine.now + 0.5)


def test_a_program_larger_than_all_memory_takes_the_place_of_all_idle_ones(engine: Engine) -> None:
    engine.arrive("a1", 40)
    engine.finish("a1", 40)
    engine.arrive("b1", 2 * CAPACITY)

    assert engine.review(after_s=LEAST_HOLD_S) == ["b1"]
    assert engine.active == "b"


def test_an_idle_program_that_fills_all_memory_makes_room(engine: Engine) -> None:
    engine.arrive("a1", 40)
    engine.now = 1.0
    engine.arrive("b1", 40)
    engine.finish("a1", 3 * CAPACITY)

    engine.review()
    engine.review(after_s=LEAST_HOLD_S)
    assert (engine.active, engine.refused) == ("b", [])


# Tenants.


def test_the_tenant_with_the_least_context_for_its_weight_goes_first(engine: Engine) -> None:
    engine.arrive("a1", 90, tenant="many")
    for name in "bcd":
        engine.arrive(f"{name}1", 30, tenant="many")
    engine.now = 1.0
    engine.arrive("e1", 30, tenant="few", weight=2.0)
    engine.arrive("f1", 30, tenant="few", weight=2.0)
    engine.finish("a1")
    engine.machine.end_program("a", engine.now)

    engine.review()

    # One of each, and the second of the tenant of twice the weight.
    assert engine.active == "bef"


def test_the_tenant_with_the_most_context_for_its_weight_makes_room(engine: Engine) -> None:
    engine.arrive("a1", 50, tenant="many")
    engine.arrive("b1", 20, tenant="many")
    engine.arrive("c1", 10, tenant="many")
    engine.now = 1.0
    engine.arrive("d1", 20, tenant="few")
    engine.run("d1")
    engine.grown["d1"] = 45

    engine.review(steps=REVIEW_STEPS)

    assert engine.active == "ad"


def test_a_tenant_of_little_weight_has_a_program_active_before_a_heavy_one_has_a_second(
    engine: Engine,
) -> None:
    engine.arrive("a1", 90, tenant="heavy", weight=1000.0)
    engine.arrive("b1", 50, tenant="heavy", weight=1000.0)
    engine.arrive("c1", 50, tenant="heavy", weight=1000.0)
    engine.arrive("d1", 50, tenant="light", weight=0.001)
    engine.finish("a1")
    engine.machine.end_program("a", engine.now)

    engine.review()

    assert engine.active == "bd"


# Programs that call without a pause.


def call_without_pause(engine: Engine, name: str, seconds: float) -> list[str]:
    """Have a program make one call after the other; return the calls of others that become admitted."""
    admitted: list[str] = []
    (call_id,) = engine.machine.table[name].active_calls
    for number in range(math.ceil(seconds)):
        admitted += engine.review(after_s=min(1.0, seconds - number), steps=REVIEW_STEPS)
        call = engine.machine.call(call_id)
        if call.is_admitted:
            tokens = engine.admission.memory.active.contexts[name].own_tokens
            engine.run(call_id)
            engine.finish(call_id, tokens)
            call_id = f"{name}{next(engine.numbers)}"
            engine.arrive(call_id, tokens, shared=tokens, tenant=call.tenant)
    return [call_id for call_id in admitted if not call_id.startswith(name)]


def test_a_tenant_with_less_than_its_share_of_memory_takes_it_from_one_that_never_pauses(
    engine: Engine,
) -> None:
    """However large the program of the other is, and though it came first."""
    engine.arrive("a1", 95, tenant="hog")
    engine.arrive("b1", 40, tenant="late")

    assert call_without_pause(engine, "a", HOLD_S) == []
    assert call_without_pause(engine, "a", HOLD_S + 1.0) == ["b1"]


def test_a_tenant_with_its_share_of_memory_gives_none_of_it(engine: Engine) -> None:
    engine.arrive("a1", 50, tenant="one")
    engine.arrive("b1", 50, tenant="other")
    engine.arrive("c1", 40, tenant="one")

    assert engine.review(after_s=STARVING_FILLS * HOLD_S, steps=REVIEW_STEPS) == []


def test_shares_of_memory_are_in_proportion_to_weights(engine: Engine) -> None:
    engine.arrive("a1", 40, tenant="light")
    engine.arrive("b1", 40, tenant="heavy", weight=3.0)
    engine.arrive("c1", 30, tenant="heavy", weight=3.0)

    assert engine.review(after_s=HOLD_S + 1.0, steps=REVIEW_STEPS) == ["a1", "c1"]
    assert engine.active == "bc"


def test_memory_is_not_taken_where_that_would_not_suffice(engine: Engine) -> None:
    """What one tenant has beyond its share is too little, and the others have no more than theirs."""
    for name, tokens, tenant in (("a", 30, "x"), ("b", 36, "y"), ("p", 30, "z")):
        engine.arrive(f"{name}1", tokens, tenant=tenant, prefix=name, prefix_tokens=tokens // 2)
    engine.arrive("c1", 20, tenant="w")
    waiting = engine.refused

    engine.review(after_s=HOLD_S + 1.0, steps=REVIEW_STEPS)

    assert waiting == ["c1"]
    assert engine.refused == ["c1"]


def test_memory_is_taken_once_in_the_time_of_filling_it(engine: Engine) -> None:
    for name in "abcde":
        engine.arrive(f"{name}1", 20, tenant="hog")
    for name, tenant in zip("uvw", ("u", "v", "w"), strict=True):
        engine.arrive(f"{name}1", 20, tenant=tenant)
    assert engine.refused == ["u1", "v1", "w1"]

    for waiting in (["v1", "w1"], ["w1"], []):
        engine.review(after_s=HOLD_S + 1e-6, steps=REVIEW_STEPS)
        assert [call_id for call_id in engine.refused if call_id[0] in "uvw"] == waiting
        engine.review(after_s=1.0, steps=REVIEW_STEPS)
        assert [call_id for call_id in engine.refused if call_id[0] in "uvw"] == waiting


def test_a_program_takes_memory_from_one_of_its_own_tenant_once_it_starves() -> None:
    """Nothing ends, so that no response time is known; the longest idle time stands in for it."""
    engine = Engine(machine=make_machine(idle_s=20.0))
    engine.arrive("a1", 95)
    engine.now = 1.0
    engine.arrive("b1", 95)

    assert call_without_pause(engine, "a", STARVING * 20.0) == []
    assert call_without_pause(engine, "a", HOLD_S + 1.0) == ["b1"]
    assert engine.active == "b"


def test_memory_is_taken_for_starving_programs_in_a_small_share_of_the_time() -> None:
    """Two contexts of 95 tokens are prefilled again for each exchange."""
    exchange_s = 2 * 95 * HOLD_S / CAPACITY
    engine = Engine(machine=make_machine(idle_s=20.0))
    for number, name in enumerate("abc"):
        engine.now = float(number)
        engine.arrive(f"{name}1", 95)
    assert call_without_pause(engine, "a", STARVING * 20.0 + HOLD_S + 1.0) == ["b1"]

    assert call_without_pause(engine, "b", exchange_s / RESCUE_SHARE - 2 * HOLD_S) == []
    assert call_without_pause(engine, "b", 2 * HOLD_S) == ["c1"]


def test_a_program_gets_its_turn_while_the_calls_of_the_one_that_gave_way_still_run() -> None:
    engine = Engine(machine=make_machine(idle_s=20.0))
    engine.arrive("a1", 95)
    engine.run("a1")
    engine.grown["a1"] = 95
    engine.now = 1.0
    engine.arrive("b1", 95)

    assert engine.review(after_s=STARVING * 20.0 + 1.0, steps=REVIEW_STEPS) == ["b1"]
    assert engine.active == "b"
    engine.finish("a1", 95)
    engine.arrive("a2", 95, shared=95)
    assert (engine.review(), engine.refused) == ([], ["a2"])


def test_a_large_program_that_waits_does_not_keep_out_those_of_other_tenants() -> None:
    engine = Engine(machine=make_machine(idle_s=1e9))
    engine.arrive("a1", 40, tenant="one")
    engine.now = 1.0
    engine.arrive("b1", 5 * CAPACITY, tenant="huge")
    engine.review()
    engine.now = 1000.0
    for _ in range(12):
        engine.machine.table.statistics.on_ended(0.0, engine.now)
    engine.arrive("c1", 40, tenant="huge")
    engine.arrive("d1", 40, tenant="one")

    assert engine.review() == ["d1"]
    assert engine.refused == ["b1", "c1"]


# Keys.


def test_keys_follow_the_work_of_programs() -> None:
    engine = Engine(machine=make_machine(boost=0.7))
    engine.arrive("a1", 60)
    engine.now = 1.0
    engine.arrive("b1", 60)
    engine.arrive("c1", 60)
    engine.now = 1000.0
    engine.machine.table.statistics.sizes_of("").known = 2.0
    engine.finish("a1", 60)
    assert engine.admission.memory.inactive.places() == {"b": 1, "c": 2}

    engine.arrive("b2", 60, shared=60, work=1e9)
    engine.machine.tick(engine.now)

    assert engine.admission.memory.inactive.places() == {"c": 1, "b": 2}
    assert engine.admission.is_due(engine.step)
    engine.machine.check()


def test_the_first_program_that_waits_follows_the_strength_of_its_tenant() -> None:
    engine = Engine(machine=make_machine(boost=0.7))
    engine.arrive("a1", 60)
    engine.arrive("b1", 60, tenant="t", work=1e9)
    engine.now = 1.0
    engine.arrive("c1", 60, tenant="t")
    waiting = engine.admission.memory.inactive.orders
    assert [context.program.program_id for context in waiting.heads()] == ["b"]
    engine.machine.table.statistics.sizes_of("t").known = 2.0
    engine.now = 1000.0
    engine.finish("a1", 60)

    engine.machine.tick(engine.now)

    assert [context.program.program_id for context in waiting.heads()] == ["c"]
    engine.machine.table.statistics.sizes_of("t").known = 0.0
    engine.now = 2000.0
    engine.machine.tick(engine.now)
    assert [context.program.program_id for context in waiting.heads()] == ["b"]


def test_the_first_program_that_waits_follows_the_lead_of_calls_that_nothing_identifies(
    engine: Engine,
) -> None:
    engine.arrive("a1", 60)
    engine.arrive("b1", 60, tenant="t")
    engine.now = 1.0
    engine.arrive("c1", 60, tenant="t", is_identified=False)
    engine.machine.table.statistics.sizes_of("t").known = 0.0
    engine.machine.tick(engine.now)
    waiting = engine.admission.memory.inactive.orders
    assert [context.program.program_id for context in waiting.heads()] == ["b"]

    engine.now = 100.0
    engine.arrive("b2", 60, tenant="t", shared=60)
    engine.machine.tick(engine.now)

    assert [context.program.program_id for context in waiting.heads()] == ["c"]


def test_the_key_of_a_waiting_program_follows_what_its_calls_report(engine: Engine) -> None:
    engine.arrive("a1", 60)
    engine.now = 10.0
    engine.arrive("b1", 60)
    engine.arrive("c1", 60)

    engine.arrive("c2", 60, shared=60, age_s=9.0)

    assert engine.admission.memory.inactive.places() == {"c": 1, "b": 2}


def test_running_calls_of_an_inactive_program_keep_their_memory() -> None:
    engine = displacing(40, 70)
    engine.arrive("c1", 25)
    engine.review()
    assert engine.active == "a"

    engine.finish("b1", 50)
    engine.review()

    assert engine.active == "ac"


def test_a_program_may_come_back_into_the_memory_of_its_own_running_calls() -> None:
    engine = displacing(40, 70)

    engine.finish("a1")
    engine.machine.end_program("a", engine.now)
    engine.review()

    assert (engine.active, engine.admission.memory.active.tokens) == ("b", 50)


def test_an_inactive_program_whose_calls_were_preempted_holds_no_memory() -> None:
    engine = displacing(40, 70)
    engine.machine.preempt("b1", engine.now)
    engine.arrive("c1", 25)

    engine.review()

    assert (engine.active, engine.refused) == ("ac", ["b1"])
