"""What Continuum pins, for how long, and in which order it runs calls."""

from __future__ import annotations

import pytest
from tests.lab.sim.baselines.driver import Driver

from autellix_lab.sim.baselines.continuum import (
    DURATION_WINDOW,
    FEW_DURATIONS,
    FIXED_TTL_S,
    Continuum,
    Durations,
    Memoryfulness,
)
from autellix_lab.sim.calls import EngineCall
from autellix_lab.sim.model import EngineModel
from autellix_lab.workload.trace import CallTrace

BLOCK = 16


class Engine(Driver):
    """A machine whose calls hold KV blocks as they start."""

    def __init__(self, kv_blocks: int = 100) -> None:
        self.baseline = Continuum(EngineModel(kv_blocks=kv_blocks, block_tokens=BLOCK))
        super().__init__(self.baseline)
        self.calls: dict[str, EngineCall] = {}

    def enter(self, call_id: str, blocks: int, now: float) -> bool:
        """Start a call whose prompt fills some blocks, if they are free."""
        program = call_id.split(".")[0]
        trace = CallTrace(id=0, parents=(), thread="0", prefill_tokens=blocks * BLOCK, decode_tokens=1)
        call = self.calls.setdefault(call_id, EngineCall(call_id, program, trace, parents=()))
        if not self.baseline.blocks.enter(call, 10_000, 0):
            return False
        call.computed, call.chunk = call.chunk, 0
        self.start(call_id, now)
        return True

    def end(self, call_id: str, now: float, *, is_last: bool = False) -> None:
        """Finish a call and release its blocks."""
        call = self.calls[call_id]
        self.machine.finish(call_id, now, context_tokens=call.known)
        self.baseline.blocks.release(call)
        if is_last:
            self.machine.end_program(call.program_id, now)

    def run(self, program: str, blocks: int, start_s: float, end_s: float) -> None:
        """Run a call alone."""
        call_id = self.arrive(program, blocks * BLOCK, start_s)
        assert self.enter(call_id, blocks, start_s)
        self.end(call_id, end_s)

    @property
    def pinned(self) -> set[str]:
        return set(self.baseline.blocks.pins)


def test_a_pin_holds_its_blocks_until_its_time_is_over() -> None:
    engine = Engine()
    engine.run("one", 60, 0.0, 1.0)
    assert engine.baseline.blocks.kv.available == 40

    engine.decide(1.0 + FIXED_TTL_S)
    assert engine.pinned == {"one"}

    engine.decide(1.1 + FIXED_TTL_S)
    assert engine.pinned == set()
    assert engine.baseline.blocks.kv.available == 100


def test_a_pin_outlives_its_time_while_a_call_of_the_program_waits_and_ends_as_it_starts() -> None:
    engine = Engine()
    engine.run("one", 60, 0.0, 1.0)
    call = engine.arrive("one", 960, 2.0)
    engine.decide(10.0)
    assert engine.pinned == {"one"}

    assert engine.enter(call, 30, 10.0)

    assert engine.pinned == set()


def test_the_end_of_a_program_ends_its_pin() -> None:
    engine = Engine()
    call = engine.arrive("one", 960, 0.0)
    assert engine.enter(call, 60, 0.0)
    engine.end(call, 1.0, is_last=True)
    assert engine.pinned == set()
    assert engine.baseline.blocks.kv.available == 100


def test_where_nothing_runs_the_latest_programs_lose_their_pins_until_the_first_call_fits() -> None:
    engine = Engine()
    for second, program in enumerate(("first", "second", "third")):
        engine.run(program, 30, second / 10, 0.5)
    small, large = engine.arrive("small", 1, 0.6), engine.arrive("large", 1, 0.6)
    assert engine.enter(small, 10, 0.6)
    assert not engine.enter(large, 40, 0.6)
    assert engine.pinned == {"first", "second", "third"}

    engine.end(small, 0.7, is_last=True)

    assert engine.enter(large, 40, 0.7)
    assert engine.pinned == {"first", "second"}


def test_preempted_calls_go_first_then_pinned_programs_then_the_first_to_arrive() -> None:
    engine = Engine()
    engine.run("pinned", 10, 5.0, 6.0)
    engine.arrive("early", 1, 6.0)
    engine.arrive("late", 1, 7.0)
    preempted = engine.arrive("preempted", 1, 8.0)
    assert engine.enter(preempted, 10, 8.0)
    engine.machine.preempt(preempted, 8.0)
    engine.baseline.blocks.preempt(engine.calls[preempted])
    engine.arrive("pinned", 1, 8.0)

    assert engine.order() == ["preempted.1", "pinned.2", "early.1", "late.1"]


def test_the_latest_program_is_preempted_first() -> None:
    engine = Engine()
    engine.run("pinned", 10, 5.0, 6.0)
    for program, now in (("early", 1.0), ("pinned", 6.0)):
        assert engine.enter(engine.arrive(program, 1, max(now, 6.0)), 10, 6.0)
    # `pinned` arrived at 5 s and `early` at 6 s, and no level protects either.
    assert engine.order() == ["pinned.2", "early.1"]


def test_the_best_time_to_live_weighs_its_chance_against_its_cost() -> None:
    durations = Durations()
    for duration_s in (1.0, 1.0, 1.0, 10.0):
        durations.add(duration_s)
    assert durations.best_ttl_s(1.0) == 0.0  # 3/4 of 1 s is less than 1 s
    assert durations.best_ttl_s(2.0) == 1.0  # 1.5 - 1
    assert durations.best_ttl_s(30.0) == 1.0  # 22.5 - 1 beats 30 - 10
    assert durations.best_ttl_s(40.0) == 10.0  # 40 - 10 beats 30 - 1


def test_only_the_latest_durations_count() -> None:
    durations = Durations()
    durations.add(1.0)
    for _ in range(DURATION_WINDOW):
        durations.add(3.0)
    assert len(durations) == DURATION_WINDOW
    assert durations.best_ttl_s(10.0) == 3.0


def test_the_time_to_live_is_learned_once_enough_durations_are_known() -> None:
    engine = Engine()
    baseline = engine.baseline
    now = 0.0
    for _ in range(FEW_DURATIONS + 2):
        assert baseline.ttl_s("", BLOCK) == FIXED_TTL_S
        engine.run("one", 1, now, now)
        now += 0.004
    # A pin for 4 ms saves a prefill of 11.6 ms.
    assert baseline.ttl_s("", BLOCK) == pytest.approx(0.004)
    assert baseline.ttl_s("another tool", BLOCK) == pytest.approx(0.004)


def test_waits_of_calls_that_lost_their_pin_raise_the_benefit() -> None:
    engine = Engine()
    engine.run("one", 1, 0.0, 0.0)
    engine.decide(3.0)
    call = engine.arrive("one", 16, 3.0)
    assert engine.enter(call, 1, 7.0)
    assert list(engine.baseline._waits_s) == [4.0]


def test_memoryfulness_is_one_for_programs_of_one_length_and_small_for_mixed_ones() -> None:
    alike, mixed = Memoryfulness(), Memoryfulness()
    assert alike.eta == 1.0
    for _ in range(3):
        alike.add(4)
    for calls in (1, 2, 4, 8, 16, 32):
        mixed.add(calls)
    assert alike.eta == pytest.approx(1.0)
    # By hand: the pairs of one program of 1 and one of 2 calls are (1, 0), (1, 1), (2, 0).
    two = Memoryfulness()
    two.add(1)
    two.add(2)
    assert two.eta == pytest.approx(0.5)
    assert mixed.eta < 1
