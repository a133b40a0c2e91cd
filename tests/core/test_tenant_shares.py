"""The share between tenants: order, idle tenants, and the state that is dropped."""

# Hypothesis is skipped by the type checker, and its decorators with it.
# mypy: disallow-untyped-decorators=False

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autellix_backend.core.arrival import Arrival
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.machine import Machine
from autellix_backend.core.names import POLICY_NAMES
from autellix_backend.core.policies import make_policy

SLICE_S = 2.0
LONGEST_S = 12


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine(SchedulerConfig(policy="plas", bounds=(SLICE_S, 8.0), beta=math.inf))
    yield machine
    machine.check()


def known(machine: Machine) -> set[str]:
    """Return the tenants that are not forgotten."""
    return {*machine.shares._shares, *machine.shares._idle}


def arrive(machine: Machine, tenant: str, count: int, weight: float = 1.0, now: float = 0.0) -> None:
    """Let calls of one program of a tenant arrive: a0, a1, … of tenant a."""
    for number in range(count):
        machine.arrive(Arrival(f"{tenant}{number}", tenant, tenant=tenant, weight=weight), now)


def batch(machine: Machine, slots: int) -> list[str]:
    return [call.call_id for call in machine.batch(slots)]


def run(machine: Machine, call_ids: Sequence[str], seconds: float) -> None:
    """Give waiting calls slots and let all of them be served for a time."""
    for call_id in call_ids:
        if not machine.call(call_id).is_running:
            machine.start(call_id, 0.0)
        machine.charge(call_id, seconds, seconds)


@pytest.mark.parametrize(("slots", "expected"), [(3, {"a": 1, "b": 2}), (6, {"a": 2, "b": 4})])
def test_slots_are_split_by_weight(machine: Machine, slots: int, expected: dict[str, int]) -> None:
    arrive(machine, "a", 6, weight=0.5)
    arrive(machine, "b", 6, weight=1.0)

    assert Counter(call.tenant for call in machine.batch(slots)) == expected


def test_other_tenants_get_an_unused_share(machine: Machine) -> None:
    arrive(machine, "a", 9)
    arrive(machine, "b", 1)

    assert Counter(call.tenant for call in machine.batch(4)) == {"a": 3, "b": 1}


def test_a_running_call_keeps_its_slot_until_its_tenant_is_ahead_by_a_slice(machine: Machine) -> None:
    arrive(machine, "a", 1)
    arrive(machine, "b", 1)
    run(machine, ["a0"], SLICE_S)
    assert batch(machine, 1) == ["a0"]

    run(machine, ["a0"], 0.5)

    assert batch(machine, 1) == ["b0"]


def test_a_call_that_cannot_run_takes_no_slot(machine: Machine) -> None:
    arrive(machine, "a", 3)
    arrive(machine, "b", 3)

    chosen = machine.batch(4, admissible=lambda call: call.call_id not in ("a0", "a1"))

    assert sorted(call.call_id for call in chosen) == ["a2", "b0", "b1", "b2"]
    assert [call.call_id for call in chosen][:2] == ["a2", "b0"]


def test_an_idle_tenant_accumulates_no_credit(machine: Machine) -> None:
    arrive(machine, "a", 1)
    arrive(machine, "b", 2)
    run(machine, ["b0"], 100.0)
    machine.finish("a0", 100.0)
    machine.preempt("b0", 100.0)
    arrive(machine, "a", 3, now=100.0)

    run(machine, ["a0"], SLICE_S + 0.5)

    assert batch(machine, 1) == ["b0"]


def test_a_short_pause_keeps_at_most_a_slice_of_credit(machine: Machine) -> None:
    """One call after the other, each shorter than a slice, are not put off by a whole slice each."""
    arrive(machine, "a", 1)
    arrive(machine, "b", 1)
    run(machine, ["b0"], SLICE_S)
    run(machine, ["a0"], 0.5)
    machine.finish("a0", 3.0)

    machine.arrive(Arrival("a1", "a", tenant="a"), 3.0)

    # Else it would wait until b is a slice ahead again.
    run(machine, ["b0"], 1.0)
    assert batch(machine, 1) == ["a1"]


def test_a_tenant_without_waiting_calls_accumulates_no_credit(machine: Machine) -> None:
    """With all its calls running it falls behind one that has more of them, and has no claim."""
    arrive(machine, "a", 3)
    arrive(machine, "b", 1)
    run(machine, ["a0", "a1", "b0"], 100.0)

    machine.arrive(Arrival("b1", "b", tenant="b"), 100.0)
    machine.arrive(Arrival("b2", "b", tenant="b"), 100.0)

    assert Counter(call.tenant for call in machine.batch(4)) == {"a": 2, "b": 2}


def test_the_first_waiting_tenant_is_aligned_with_the_most_served_one(machine: Machine) -> None:
    arrive(machine, "a", 1)
    arrive(machine, "b", 1)
    run(machine, ["a0", "b0"], 50.0)
    run(machine, ["a0"], 50.0)

    arrive(machine, "c", 1)
    machine.arrive(Arrival("a1", "a", tenant="a"), 0.0)

    # c starts where a is, and not where b is: after a slice of its own it is behind both.
    run(machine, ["c0"], SLICE_S + 0.5)
    assert batch(machine, 2) == ["b0", "a0"]


def test_a_tenant_that_is_ahead_stays_ahead_after_a_pause(machine: Machine) -> None:
    arrive(machine, "a", 1)
    arrive(machine, "b", 1)
    run(machine, ["a0"], 9.0)
    machine.finish("a0", 9.0)
    arrive(machine, "a", 1, now=9.0)

    run(machine, ["b0"], 4.0)
    machine.preempt("b0", 13.0)

    assert batch(machine, 1) == ["b0"]


def test_a_tenant_is_dropped_once_the_others_have_caught_up(machine: Machine) -> None:
    arrive(machine, "a", 1)
    arrive(machine, "b", 1)
    run(machine, ["a0"], 9.0)
    machine.finish("a0", 9.0)
    assert known(machine) == {"a", "b"}

    run(machine, ["b0"], 9.0 + SLICE_S)
    machine.arrive(Arrival("b1", "b", tenant="b"), 20.0)

    assert known(machine) == {"b"}


def test_service_of_a_forgotten_tenant_is_charged_to_nobody(machine: Machine) -> None:
    """As of a step that ran while admission took the tenant's only call from its queue."""
    shares = machine.shares
    arrive(machine, "a", 1)
    arrive(machine, "b", 1)
    run(machine, batch(machine, 2), 1.0)
    machine.finish("a0", 1.0)
    assert known(machine) == {"a", "b"}

    shares.charge("a", 5.0)
    assert known(machine) == {"a", "b"}
    machine.finish("b0", 1.0)
    shares.charge("a", 5.0)
    assert known(machine) == set()


def test_the_last_reported_weight_counts(machine: Machine) -> None:
    arrive(machine, "a", 4)
    arrive(machine, "b", 4)
    machine.arrive(Arrival("b4", "b", tenant="b", weight=3.0), 0.0)

    assert Counter(call.tenant for call in machine.batch(4)) == {"a": 1, "b": 3}


@pytest.mark.parametrize("weight", [0.0, -1.0, math.inf, math.nan])
def test_a_weight_must_be_positive(machine: Machine, weight: float) -> None:
    with pytest.raises(ValueError, match="weight must be positive and finite"):
        machine.arrive(Arrival("a", "p", weight=weight), 0.0)

    assert len(machine) == 0


def test_a_policy_that_holds_slots_holds_them_against_other_tenants() -> None:
    machine = Machine(SchedulerConfig(policy="sjf"))
    arrive(machine, "a", 2)
    arrive(machine, "b", 1)
    run(machine, ["a0", "a1"], 1000.0)

    assert batch(machine, 3) == ["a0", "a1", "b0"]
    machine.finish("a0", 1000.0)
    machine.arrive(Arrival("a2", "a", tenant="a"), 1000.0)
    assert batch(machine, 2) == ["a1", "b0"]


@dataclass(kw_only=True)
class Backlog:
    """Tenants that always have as many calls as there are slots, of random lengths; a step is a second."""

    config: SchedulerConfig
    weights: Sequence[float]
    slots: int
    seed: int
    served: Counter[str] = field(default_factory=Counter)
    longest_gap: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.machine = Machine(self.config)
        self._random = random.Random(self.seed)
        self._numbers = itertools.count()
        self._left: dict[str, int] = {}
        for tenant in range(len(self.weights)):
            for _ in range(self.slots + 1):
                self._arrive(tenant, 0)

    def play(self, steps: int) -> None:
        """Run some steps."""
        last = Counter(dict.fromkeys(map(str, range(len(self.weights))), 0))
        for now in range(steps):
            self.machine.tick(now)
            self._fill(now)
            self.machine.check()
            running = [call for call in self.machine if call.is_running]
            assert len(running) == self.slots
            for call in running:
                self._serve(call.call_id, now + 1)
            for tenant in {call.tenant for call in running}:
                self.longest_gap[tenant] = max(self.longest_gap[tenant], now - last[tenant])
                last[tenant] = now
        for tenant, then in last.items():
            self.longest_gap[tenant] = max(self.longest_gap[tenant], steps - then)

    def _fill(self, now: int) -> None:
        chosen = self.machine.batch(self.slots)
        for call in list(self.machine):
            if call.is_running and call not in chosen:
                self.machine.preempt(call.call_id, now)
        for call in chosen:
            if not call.is_running:
                self.machine.start(call.call_id, now)

    def _arrive(self, tenant: int, now: int) -> None:
        call_id = f"{tenant}.{next(self._numbers)}"
        self._left[call_id] = self._random.randint(1, LONGEST_S)
        self.machine.arrive(
            Arrival(
                call_id,
                # Half of the calls belong to new programs.
                call_id if self._random.random() < 0.5 else f"{tenant}",
                expected_s=self._left[call_id],
                tenant=str(tenant),
                weight=self.weights[tenant],
            ),
            now,
        )

    def _serve(self, call_id: str, now: int) -> None:
        tenant = self.machine.call(call_id).tenant
        self.machine.charge(call_id, 1.0, now)
        self.served[tenant] += 1
        self._left[call_id] -= 1
        if not self._left[call_id]:
            self.machine.finish(call_id, now)
            self._arrive(int(tenant), now)


BACKLOGS = st.builds(
    Backlog,
    config=st.builds(
        SchedulerConfig,
        policy=st.sampled_from(POLICY_NAMES),
        bounds=st.sampled_from(((1.0, 4.0), (3.0, 9.0, 30.0), (0.5,), ())),
        beta=st.sampled_from((1.0, 4.0, math.inf)),
    ),
    weights=st.lists(st.sampled_from((0.2, 0.5, 1.0, 1.0, 2.0, 3.0)), min_size=2, max_size=4),
    slots=st.integers(1, 5),
    seed=st.integers(0, 1000),
)


def slack_s(backlog: Backlog) -> float:
    """Return the service by which a tenant may be off: a slice, and a step's overrun."""
    holds_s = LONGEST_S if make_policy(backlog.config.policy).holds_slots else 1
    return backlog.config.share_slice_s + backlog.slots * holds_s


@settings(max_examples=60)
@given(BACKLOGS)
def test_weights_are_honoured_within_a_slice(backlog: Backlog) -> None:
    """The bound of start-time fair queueing, for any two tenants and any policy inside them."""
    backlog.play(120)

    virtual = [backlog.served[str(tenant)] / weight for tenant, weight in enumerate(backlog.weights)]
    for (one, of_one), (other, of_other) in itertools.combinations(
        zip(backlog.weights, virtual, strict=True), 2
    ):
        assert abs(of_one - of_other) <= slack_s(backlog) * (1 / one + 1 / other)


@settings(max_examples=30)
@given(BACKLOGS)
def test_no_tenant_starves(backlog: Backlog) -> None:
    backlog.play(200)

    for tenant, weight in enumerate(backlog.weights):
        # While it gets nothing, the others use up what they may be ahead of it.
        others = [other for place, other in enumerate(backlog.weights) if place != tenant]
        ahead_s = sum(slack_s(backlog) * (1 + other / weight) for other in others)
        assert backlog.longest_gap[str(tenant)] <= 2 + 2 * ahead_s / backlog.slots


def test_one_tenant_is_compared_with_nobody(machine: Machine) -> None:
    assert machine.shares.knows_only("one")
    assert not machine.shares.are_several
    machine.arrive(Arrival("a", "p", tenant="one"), 0.0)
    assert machine.shares.knows_only("one")
    assert not machine.shares.knows_only("other")
    machine.arrive(Arrival("b", "q", tenant="other"), 0.0)
    assert machine.shares.are_several
    assert not machine.shares.knows_only("one")
