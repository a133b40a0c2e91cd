"""Properties of any sequence of events."""

# Hypothesis is skipped by the type checker, and its decorators with it.
# mypy: disallow-untyped-decorators=False

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.unit_step import Step, UnitStep, Workload

from autellix_backend.core.arrival import Arrival
from autellix_backend.core.batch import form_batch
from autellix_backend.core.call import Call, CallRecord, LevelChange
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.machine import Machine
from autellix_backend.core.names import POLICY_NAMES
from autellix_backend.core.policies.base import SizePolicy
from autellix_backend.core.queues.levels import LevelQueue
from autellix_backend.core.starvation import is_starving

quick = settings(max_examples=25)

SECONDS = st.one_of(
    st.sampled_from((0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0)),
    st.floats(min_value=1e-4, max_value=10.0, allow_nan=False),
)
CONFIGS = st.builds(
    SchedulerConfig,
    policy=st.sampled_from(POLICY_NAMES),
    bounds=st.sampled_from(((0.1, 0.4, 1.6), (0.5, 1.0, 2.0, 4.0), (1.0,), ())),
    beta=st.sampled_from((0.3, 1.0, 2.0, 3.0, math.inf)),
    demotes=st.sampled_from((True, True, False)),
)
# (event, which call or program, amount): what the numbers mean is up to the event.
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            (
                "arrive",
                "arrive",
                "toggle",
                "toggle",
                "charge",
                "charge",
                "finish",
                "abort",
                "tick",
                "tick",
                "end",
            )
        ),
        st.integers(min_value=0, max_value=30),
        SECONDS,
    ),
    # Short lists, which hypothesis prefers, seldom demote or promote a call.
    min_size=40,
    max_size=60,
)


@dataclass(kw_only=True)
class Driver:
    """Applies drawn events to a machine, and records its inputs and outputs."""

    machine: Machine
    tenants: tuple[str, ...] = ("",)
    now: float = 0.0
    arrived: int = 0
    charged_s: float = 0.0
    records: list[CallRecord] = field(default_factory=list)

    def apply(self, event: str, which: int, amount: float) -> None:
        self.now += amount
        calls = list(self.machine)
        if event == "arrive":
            told = amount if which % 3 == 0 else None
            self.machine.arrive(
                Arrival(
                    f"c{self.arrived}",
                    f"p{which % 4}",
                    service_s=told,
                    wait_s=told,
                    parents=tuple(record.call_id for record in self.records[-2:]) if which % 5 == 0 else None,
                    expected_s=2 * amount if which % 2 else None,
                    tenant=self.tenants[which % len(self.tenants)],
                    weight=1.0 + which % 3,
                ),
                self.now,
            )
            self.arrived += 1
        elif event == "end":
            self.machine.end_program(f"p{which % 4}", self.now)
        elif event == "tick":
            self.tick()
        elif calls:
            self._touch(event, calls[which % len(calls)], amount)

    def _touch(self, event: str, call: Call, amount: float) -> None:
        if event == "toggle":
            (self.machine.preempt if call.is_running else self.machine.start)(call.call_id, self.now)
        elif event == "charge" and call.is_running:
            self.machine.charge(call.call_id, amount, self.now)
            self.charged_s += amount
        elif event in ("finish", "abort"):
            leave = self.machine.finish if event == "finish" else self.machine.abort
            self.records.append(leave(call.call_id, self.now))

    def tick(self) -> list[LevelChange]:
        """Tick, and compare with the pseudo-code's scan of every call."""
        expected = scan(self.machine, self.now)
        changes = self.machine.tick(self.now)
        if not self.machine.policy.sizes_programs:
            moves = [change for change in changes if change.old != change.new]
            assert [(change.call_id, change.old, change.new) for change in moves] == expected
        return changes


def scan(machine: Machine, now: float) -> list[tuple[str, int, int]]:
    """Return the changes of Algorithm 1, lines 15-31, by looking at every call, changing nothing."""
    changes = []
    sinks = machine.config.demotes and machine.policy.has_levels
    for call in sorted(machine, key=lambda call: call.rank):
        level, program = call.level, machine.table[call.program_id]
        if sinks and call.quantum_s <= 0 and level < machine.config.level_count:
            changes.append((call.call_id, level, level + 1))
            level += 1
        wait_s = program.wait_s + call.unpaid_wait_at(now)
        service_s = program.service_s + call.unpaid_service_s + call.size_s
        if level > 1 and is_starving(wait_s, service_s, machine.config.beta):
            changes.append((call.call_id, level, 1))
    return changes


def drive(
    config: SchedulerConfig, events: list[tuple[str, int, float]], tenants: tuple[str, ...] = ("",)
) -> Driver:
    driver = Driver(machine=Machine(config), tenants=tenants)
    for event in events:
        driver.apply(*event)
        driver.machine.check()
    return driver


@settings(max_examples=120)
@given(CONFIGS, EVENTS)
def test_a_tick_equals_a_scan_of_every_call(config: SchedulerConfig, events: list[Any]) -> None:
    drive(config, events).tick()


@settings(max_examples=40)
@given(CONFIGS, EVENTS, st.sampled_from((1e6, 1.7e9)))
def test_a_late_clock_changes_nothing(config: SchedulerConfig, events: list[Any], start: float) -> None:
    driver = Driver(machine=Machine(config), now=start)
    for event in events:
        driver.apply(*event)
    driver.tick()


@quick
@given(CONFIGS, EVENTS, st.integers(min_value=0, max_value=6))
def test_with_one_tenant_the_order_is_that_of_the_policy(
    config: SchedulerConfig, events: list[Any], slots: int
) -> None:
    """Beside the share there is no other rule, whatever the tenant's name and its weight."""
    named, nameless = drive(config, events, ("t",)), drive(config, events)

    by_rank = sorted(named.machine, key=lambda call: call.rank)
    assert list(named.machine) == by_rank
    assert named.machine.batch(slots) == by_rank[:slots]
    assert named.records == nameless.records
    assert [call.call_id for call in by_rank] == [call.call_id for call in nameless.machine]
    assert named.tick() == nameless.tick()


@quick
@given(CONFIGS, EVENTS)
def test_among_the_calls_of_a_tenant_the_order_is_that_of_the_policy(
    config: SchedulerConfig, events: list[Any]
) -> None:
    machine = drive(config, events, ("a", "b", "c")).machine

    for tenant in "abc":
        ranks = [call.rank for call in machine if call.tenant == tenant]
        assert ranks == sorted(set(ranks))


@quick
@given(CONFIGS, EVENTS)
def test_a_level_stays_between_1_and_k(config: SchedulerConfig, events: list[Any]) -> None:
    driver = drive(config, events)

    policy = driver.machine.policy
    keyed_levels = 2 if isinstance(policy, SizePolicy) else 1
    levels = config.level_count if policy.has_levels else keyed_levels
    assert all(1 <= call.level <= levels for call in driver.machine)
    assert all(1 <= record.level <= levels for record in driver.records)


@quick
@given(CONFIGS, EVENTS)
def test_no_call_is_lost_or_leaves_twice(config: SchedulerConfig, events: list[Any]) -> None:
    driver = drive(config, events)

    left = [record.call_id for record in driver.records]
    active = [call.call_id for call in driver.machine]
    assert sorted(left + active) == sorted(f"c{i}" for i in range(driver.arrived))


@quick
@given(CONFIGS, EVENTS)
def test_all_time_is_charged(config: SchedulerConfig, events: list[Any]) -> None:
    driver = drive(config, events)
    for call in list(driver.machine):
        driver.records.append(driver.machine.abort(call.call_id, driver.now))

    assert math.isclose(sum(record.service_s for record in driver.records), driver.charged_s, abs_tol=1e-6)
    for record in driver.records:
        assert 0 <= record.table_wait_s <= record.wait_s <= record.finish_s - record.arrival_s + 1e-9


@quick
@given(CONFIGS, EVENTS)
def test_after_a_tick_no_call_below_level_1_starves(config: SchedulerConfig, events: list[Any]) -> None:
    driver = drive(config, events)
    driver.tick()

    machine = driver.machine
    below = [call for call in machine if call.level > 1]
    for call in below:
        program = machine.table[call.program_id]
        wait_s = program.wait_s + call.unpaid_wait_at(driver.now)
        service_s = program.service_s + call.unpaid_service_s + call.size_s
        assert not is_starving(wait_s, service_s, config.beta)


@quick
@given(CONFIGS, EVENTS)
def test_nothing_is_kept_when_all_calls_and_programs_left(config: SchedulerConfig, events: list[Any]) -> None:
    driver = drive(config, events, ("a", "b", "c"))
    machine = driver.machine
    for call in list(machine):
        machine.finish(call.call_id, driver.now)
    machine.table.expire(driver.now, 0.0)

    assert (len(machine), len(machine.table), machine.shares._shares) == (0, 0, {})
    machine.check()


@quick
@given(CONFIGS, EVENTS, st.integers(min_value=0, max_value=6))
def test_a_batch_is_the_head_of_the_queues(config: SchedulerConfig, events: list[Any], slots: int) -> None:
    machine = drive(config, events).machine

    assert machine.batch(slots) == list(machine)[:slots]


@quick
@given(st.lists(st.integers(min_value=0, max_value=9)), st.integers(0, 8), st.integers(0, 30))
def test_a_batch_fits_and_the_next_call_would_not(costs: list[int], slots: int, capacity: int) -> None:
    batch = form_batch(costs, slots, capacity=capacity, cost=float)

    assert batch == costs[: len(batch)]
    assert len(batch) <= slots
    assert sum(batch) <= capacity
    rest = costs[len(batch) :]
    assert not rest or len(batch) == slots or sum(batch) + rest[0] > capacity


@quick
@given(st.lists(st.floats(0.001, 1e6), unique=True, max_size=8).map(sorted), st.floats(0, 1e9))
def test_every_service_has_one_level(bounds: list[float], service_s: float) -> None:
    level = LevelQueue(bounds).level_of(service_s)

    edges = [0.0, *bounds, math.inf]
    assert edges[level - 1] <= service_s < edges[level]


WORKLOADS = st.lists(
    st.builds(
        Workload,
        arrival=st.integers(0, 8),
        calls=st.lists(st.integers(1, 6), min_size=1, max_size=3).map(
            lambda steps: [Step(steps=n, parents=(j - 1,) if j else ()) for j, n in enumerate(steps)]
        ),
    ),
    min_size=1,
    max_size=5,
)


@quick
@given(CONFIGS, WORKLOADS, st.integers(1, 3))
def test_every_call_gets_the_service_it_asked_for(
    config: SchedulerConfig, workloads: list[Workload], slots: int
) -> None:
    outcome = UnitStep(config, slots, workloads).run()

    for (i, j), record in outcome.records.items():
        steps = workloads[i].calls[j].steps
        assert record.service_s == steps
        assert record.finish_s - record.arrival_s == steps + record.wait_s
    assert sum(len(row) - 1 for row in outcome.gantt) == sum(
        call.steps for workload in workloads for call in workload.calls
    )


@quick
@given(CONFIGS, WORKLOADS, st.integers(1, 3))
def test_no_slot_is_idle_while_a_call_waits(
    config: SchedulerConfig, workloads: list[Workload], slots: int
) -> None:
    outcome = UnitStep(config, slots, workloads).run()

    running = {row[0]: len(row) - 1 for row in outcome.gantt}
    for t, count in running.items():
        active = sum(record.arrival_s <= t < record.finish_s for record in outcome.records.values())
        assert count == min(slots, active)


@quick
@given(CONFIGS, WORKLOADS, st.integers(1, 3), st.sampled_from((0.1, 1.0, 7.0)))
def test_decisions_are_the_same_with_one_tenant_and_with_none(
    config: SchedulerConfig, workloads: list[Workload], slots: int, weight: float
) -> None:
    of_one = [replace(workload, tenant="t", weight=weight) for workload in workloads]

    assert UnitStep(config, slots, of_one).run() == UnitStep(config, slots, workloads).run()
