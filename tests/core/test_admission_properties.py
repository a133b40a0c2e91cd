"""Properties of boosted order and admission under any sequence of events."""

# Hypothesis is skipped by the type checker, and its decorators with it.
# mypy: disallow-untyped-decorators=False

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from autellix_backend.core.admission.idle import LEAST_HOLD_S
from autellix_backend.core.admission.programs import ProgramContext
from autellix_backend.core.admission.review import PATIENCE, STARVING
from autellix_backend.core.admission.working_set import REVIEW_STEPS, WorkingSetAdmission
from autellix_backend.core.arrival import Arrival, Context
from autellix_backend.core.call import CallRecord, LevelChange
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.hints import Hints
from autellix_backend.core.machine import Machine
from autellix_backend.core.names import POLICY_NAMES

quick = settings(max_examples=30)

CAPACITY = 100
PREFIX_TOKENS = {"tools": 20, "manual": 45, None: 0}

CONFIGS = st.builds(
    SchedulerConfig,
    policy=st.one_of(st.just("boost"), st.sampled_from(POLICY_NAMES)),
    bounds=st.sampled_from(((0.1, 0.4, 1.6), (1.0,), ())),
    beta=st.sampled_from((0.3, 2.0, math.inf)),
    admission=st.just("working_set"),
    kv_share=st.just(1.0),
    idle_s=st.sampled_from((0.5, 20.0, 1e6)),
    boost=st.sampled_from((0.0, 0.7, 5.0)),
    token_s=st.sampled_from((1e-5, 0.01, 0.2)),
)
HOSTS = st.sampled_from((0.0, 60.0, 250.0, math.inf))
"""The tokens that fit into host memory."""
KINDS = (
    *("arrive",) * 5,
    *("start",) * 3,
    *("preempt",) * 2,
    *("grow",) * 2,
    *("charge",) * 2,
    *("finish",) * 4,
    *("step",) * 4,
    "abort",
    "end",
    "expire",
    "reset",
    "pause",
    "measure",
)
# (event, which call or program, amount in seconds, size in tokens)
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.integers(0, 30),
        st.one_of(st.just(0.0), st.sampled_from((0.1, 1.0, 8.0)), st.floats(0, 50)),
        st.one_of(st.integers(0, 60), st.just(3 * CAPACITY)),
    ),
    min_size=30,
    max_size=80,
)


@dataclass(kw_only=True)
class Driver:
    """Applies drawn events to a machine as an engine with a step counter does."""

    machine: Machine
    tenants: tuple[str, ...] = ("",)
    is_told: bool = True
    """Whether calls name their contexts."""
    on_review: Callable[[Driver], None] | None = None
    now: float = 0.0
    step: int = 0
    arrived: int = 0
    tokens: dict[str, int] = field(default_factory=dict)
    records: list[CallRecord] = field(default_factory=list)
    decisions: list[Any] = field(default_factory=list)

    @property
    def admission(self) -> WorkingSetAdmission:
        assert isinstance(self.machine.admission, WorkingSetAdmission)
        return self.machine.admission

    def apply(self, event: str, which: int, amount: float, size: int) -> None:
        self.now += amount
        program_id = f"p{which % 7}"
        if event == "arrive":
            self._arrive(program_id, which, amount, size)
        elif event == "end":
            self.machine.end_program(program_id, self.now)
        elif event == "expire":
            self.machine.expire(self.now, amount)
        elif event == "measure":
            self.machine.observe_step(float(size), amount)
        elif event == "step":
            self.advance()
        elif event == "reset":
            self.machine.admission.lose_contexts()
        else:
            self._touch(event, which, amount, size)
        self.machine.check()

    def _arrive(self, program_id: str, which: int, amount: float, size: int) -> None:
        call_id, self.arrived = f"c{self.arrived}", self.arrived + 1
        self.tokens[call_id] = size
        prefix = ("tools", "manual", None)[which % 3]
        self.machine.arrive(
            Arrival(
                call_id,
                program_id,
                tenant=self.tenants[which % 7 % len(self.tenants)],
                weight=(0.01, 1.0, 50.0)[which % 7 % 3],
                expected_s=amount if which % 4 else None,
                age_s=3 * amount if which % 5 == 0 else None,
                work=100.0 * size if which % 2 else None,
                hints=Hints(
                    class_name=f"k{which % 2}",
                    expected_tokens=30.0 * size if which % 11 == 0 else None,
                    expected_calls=float(size) if which % 11 == 1 else None,
                ),
                is_pinned=which % 17 == 16,
                context=Context(size, size // 3 * (which % 2), prefix, PREFIX_TOKENS[prefix])
                if self.is_told and which % 13
                else None,
            ),
            self.now,
        )

    def _touch(self, event: str, which: int, amount: float, size: int) -> None:
        calls = [*self.machine, *self.machine.refused()]
        if not calls:
            return
        call = calls[which % len(calls)]
        if call.is_paused and event in ("start", "pause"):
            self.machine.resume(call.call_id, self.now)
        elif event == "pause" and call.is_running:
            self.machine.pause(call.call_id, self.now)
        elif event == "start" and call.is_admitted and not call.is_running:
            self.machine.unpin(call.call_id)
            self.machine.start(call.call_id, self.now)
        elif event == "preempt" and call.is_running:
            self.machine.preempt(call.call_id, self.now)
        elif event == "grow" and call.is_running:
            self.tokens[call.call_id] += size
        elif event == "charge":
            # Also one that was preempted, and perhaps refused, while its step ran.
            self.machine.charge(call.call_id, amount, self.now, is_prefill=bool(which % 2))
        elif event == "abort":
            self.records.append(self.machine.abort(call.call_id, self.now, work=float(size)))
        elif event == "finish" and call.is_running:
            self.finish(call.call_id)

    def finish(self, call_id: str) -> None:
        tokens = self.tokens[call_id]
        self.records.append(self.machine.finish(call_id, self.now, work=50.0 * tokens, context_tokens=tokens))

    def advance(self) -> list[LevelChange]:
        """Decide as before an engine step, and note what was decided."""
        self.step += REVIEW_STEPS
        changed = self.machine.review(self.now, self.step, self.tokens.__getitem__)
        self.machine.check()
        if self.on_review is not None:
            self.on_review(self)
        changes = self.machine.tick(self.now)
        order = [call.call_id for call in self.machine]
        self.decisions.append((changed, changes, order, [call.call_id for call in self.machine.batch(3)]))
        return changes


def drive(
    config: SchedulerConfig,
    events: list[Any],
    kv_tokens: float = CAPACITY,
    host_tokens: float = 0.0,
    **facts: Any,
) -> Driver:
    driver = Driver(machine=Machine(config, kv_tokens=kv_tokens), **facts)
    if host_tokens:
        driver.admission.use_host_memory(lambda _, tokens: (0.8, 0.01 * tokens), host_tokens)
    for event in events:
        driver.apply(*event)
    return driver


@quick
@given(CONFIGS, EVENTS, HOSTS)
def test_after_a_review_the_active_programs_fit_or_are_one(
    config: SchedulerConfig, events: list[Any], host_tokens: float
) -> None:
    def judge(driver: Driver) -> None:
        active = driver.admission.memory.active
        assert active.tokens <= CAPACITY or not active.has_unpaused(2)

    drive(config, events, host_tokens=host_tokens, tenants=("a", "b", "c"), on_review=judge)


@quick
@given(CONFIGS, EVENTS, HOSTS)
def test_parked_programs_fit_into_host_memory_beside_the_active_ones(
    config: SchedulerConfig, events: list[Any], host_tokens: float
) -> None:
    """Host memory is told of each program that became active, or that was given up."""
    stored: dict[str, bool] = {}

    def judge(driver: Driver) -> None:
        memory = driver.admission.memory
        assert memory.keeps_parked or not memory.parked.contexts
        stored.update(driver.admission.take_stored())
        kept = {program_id for program_id, is_kept in stored.items() if is_kept}
        assert kept == ({*memory.active.contexts, *memory.parked.contexts} if host_tokens else set())

    drive(config, events, host_tokens=host_tokens, tenants=("a", "b", "c"), on_review=judge)


@quick
@given(CONFIGS, EVENTS, HOSTS)
def test_after_a_review_an_active_program_has_a_call_if_any_has_or_will_have_in_a_moment(
    config: SchedulerConfig, events: list[Any], host_tokens: float
) -> None:
    def judge(driver: Driver) -> None:
        calls = [*driver.machine, *driver.machine.refused()]
        active = driver.admission.memory.active
        assert active.is_live == any(not call.is_paused for call in calls if call in list(driver.machine))
        is_standing = driver.now < driver.admission.wake_s <= driver.now + LEAST_HOLD_S
        assert active.is_live or is_standing or all(call.is_paused for call in calls)

    drive(config, events, host_tokens=host_tokens, tenants=("a", "b", "c"), on_review=judge)


@quick
@given(CONFIGS, EVENTS, HOSTS, st.integers(1, 4))
def test_an_engine_that_finishes_what_it_admits_ends_every_call(
    config: SchedulerConfig, events: list[Any], host_tokens: float, slots: int
) -> None:
    """Also where no program ever ends, and time passes only while the engine stands still."""
    driver = drive(config, events, host_tokens=host_tokens, tenants=("a", "b", "c"))

    for call in (*driver.machine, *driver.machine.refused()):
        if call.is_paused:
            driver.machine.resume(call.call_id, driver.now)
    for _ in range(len(driver.machine)):
        driver.advance()
        if driver.admission.wake_s < math.inf:
            driver.now = driver.admission.wake_s
            driver.advance()
        call = driver.machine.batch(slots)[-1]
        if not call.is_running:
            driver.machine.start(call.call_id, driver.now)
        driver.finish(call.call_id)

    assert len(driver.machine) == 0


@dataclass(kw_only=True)
class PassingJudge:
    """Compares the programs that a review activated with those that it left waiting."""

    active: dict[str, ProgramContext] = field(default_factory=dict)

    def __call__(self, driver: Driver) -> None:
        memory, before = driver.admission.memory, self.active
        self.active = dict(memory.active.contexts)
        activated = [own for own in self.active.values() if before.get(own.program.program_id) is not own]
        response_s = driver.machine.table.statistics.response_s
        for program_id in memory.inactive.places():
            own = memory.find(program_id)
            assert own is not None
            waited_s = driver.now - own.since_s
            if waited_s > PATIENCE * response_s:
                # Starving ones are equal, and turns go to the one that has waited for longest.
                assert all(other.rank < own.rank or other.key == -math.inf for other in activated)
            if waited_s > STARVING * response_s:
                assert all(other.key == -math.inf for other in activated)


@quick
@given(CONFIGS, EVENTS)
def test_no_program_is_passed_for_longer_than_the_stated_times(
    config: SchedulerConfig, events: list[Any]
) -> None:
    driver = Driver(machine=Machine(config, kv_tokens=2 * CAPACITY))
    judge = PassingJudge()
    for event in events:
        driver.on_review = None
        if event[0] == "step":
            judge.active = dict(driver.admission.memory.active.contexts)
            driver.on_review = judge
        driver.apply(*event)


@quick
@given(CONFIGS, EVENTS, st.booleans())
def test_where_memory_is_ample_admission_decides_nothing(
    config: SchedulerConfig, events: list[Any], is_told: bool
) -> None:
    tenants = ("a", "b", "c")
    ample = drive(config, events, 1e9, tenants=tenants, is_told=is_told)
    without = drive(replace(config, admission="none"), events, tenants=tenants, is_told=is_told)

    assert ample.decisions == without.decisions
    assert ample.records == without.records


@quick
@given(CONFIGS, EVENTS)
def test_without_a_boost_programs_are_served_in_order_of_arrival(
    config: SchedulerConfig, events: list[Any]
) -> None:
    driver = drive(replace(config, policy="boost", boost=0.0), events)
    driver.advance()

    table = driver.machine.table
    calls = list(driver.machine)
    assert calls == sorted(calls, key=lambda call: (table[call.program_id].created_s, call.seq))


@quick
@given(CONFIGS, EVENTS)
def test_all_calls_of_a_program_have_its_key(config: SchedulerConfig, events: list[Any]) -> None:
    driver = drive(replace(config, policy="boost"), events)
    driver.advance()

    keys = {(call.program_id, call.key) for call in driver.machine}
    assert max(Counter(program_id for program_id, _ in keys).values(), default=1) == 1


@quick
@given(CONFIGS, EVENTS, HOSTS)
def test_no_call_is_lost_or_leaves_twice(
    config: SchedulerConfig, events: list[Any], host_tokens: float
) -> None:
    driver = drive(config, events, host_tokens=host_tokens, tenants=("a", "b", "c"))

    left = [record.call_id for record in driver.records]
    active = [call.call_id for call in (*driver.machine, *driver.machine.refused())]
    assert sorted(left + active) == sorted(f"c{i}" for i in range(driver.arrived))


@quick
@given(CONFIGS, EVENTS, HOSTS)
def test_nothing_is_kept_of_programs_that_ended_or_expired(
    config: SchedulerConfig, events: list[Any], host_tokens: float
) -> None:
    driver = drive(config, events, host_tokens=host_tokens, tenants=("a", "b", "c"))
    machine, memory = driver.machine, driver.admission.memory
    for call in (*machine, *machine.refused()):
        machine.abort(call.call_id, driver.now)
    for index in range(0, 7, 2):
        machine.end_program(f"p{index}", driver.now)
    machine.expire(driver.now, 0.0)

    assert (memory.active.contexts, memory.active.tokens, len(memory.inactive)) == ({}, 0, 0)
    assert (memory.parked.contexts, memory.parked.tokens) == ({}, 0)
    assert (len(machine), len(machine.table), machine.shares._shares) == (0, 0, {})
    machine.check()
