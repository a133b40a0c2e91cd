"""Which programs ThunderAgent's router pauses and resumes, and when."""

from __future__ import annotations

import math

from tests.lab.sim.baselines.driver import Driver

from autellix_lab.sim.baselines.thunder_agent import INTERVAL_S, MAX_PAUSE_S, ThunderAgent
from autellix_lab.sim.model import EngineModel

CAPACITY = 10_000
"""Tokens of KV memory; each program takes 100 more than it has."""


def driver_of(*, decays: bool = False) -> tuple[Driver, ThunderAgent]:
    model = EngineModel(kv_blocks=CAPACITY // 16, block_tokens=16)
    baseline = ThunderAgent(model, decays=decays)
    return Driver(baseline), baseline


def run_call(driver: Driver, program: str, tokens: int, now: float) -> None:
    """Run a call at once, so that its program acts from then on."""
    call = driver.arrive(program, tokens, now)
    driver.start(call, now)
    driver.finish(call, now, tokens)


def paused(baseline: ThunderAgent) -> set[str]:
    return {program.program_id for program in baseline.programs.values() if program.is_paused}


def test_a_new_program_that_does_not_fit_waits_for_the_end_of_an_interval() -> None:
    driver, baseline = driver_of()
    first = driver.arrive("first", 6000, 0.0)
    large = driver.arrive("large", 4000, 0.0)
    small = driver.arrive("small", 100, 0.0)
    assert driver.order() == [first]
    assert baseline.wake_s == INTERVAL_S

    driver.start(first, 0.0)
    driver.finish(first, 1.0, 6000, is_last=True)

    assert driver.decide(INTERVAL_S - 0.1) == []
    assert driver.decide(INTERVAL_S) == [large, small]
    assert baseline.wake_s == math.inf


def test_acting_programs_are_paused_first_and_the_smallest_before_others() -> None:
    driver, baseline = driver_of()
    for program, tokens in (("small", 1000), ("middle", 2000), ("large", 3000)):
        run_call(driver, program, tokens, 0.0)
    call = driver.arrive("reasoning", 3000, 0.0)
    driver.start(call, 0.0)

    driver.decide(INTERVAL_S, tokens=4000)

    assert paused(baseline) == {"small"}


def test_reasoning_programs_are_paused_as_their_call_ends() -> None:
    driver, baseline = driver_of()
    calls = [driver.arrive(program, 4000, 0.0) for program in ("one", "other")]
    for call in calls:
        driver.start(call, 0.0)
    driver.decide(INTERVAL_S, tokens=6000)
    assert paused(baseline) == set()

    driver.finish(calls[0], 6.0, 6000)

    assert paused(baseline) == {"one"}
    again = driver.arrive("one", 6000, 7.0)
    assert again not in driver.order()
    driver.finish(calls[1], 8.0, 6000, is_last=True)
    assert driver.decide(2 * INTERVAL_S) == [again]


def test_programs_with_a_call_are_resumed_before_new_ones_and_those_before_acting_ones() -> None:
    driver, baseline = driver_of()
    for program in ("returning", "acting"):
        run_call(driver, program, 3000, 0.0)
    blocker = driver.arrive("blocker", 3000, 0.0)
    driver.start(blocker, 0.0)
    driver.decide(INTERVAL_S, tokens=9500)
    assert paused(baseline) == {"acting", "returning"}
    new = driver.arrive("new", 1000, 6.0)
    returning = driver.arrive("returning", 9000, 7.0)

    driver.finish(blocker, 8.0, 9500, is_last=True)

    assert driver.decide(2 * INTERVAL_S) == [returning]
    assert paused(baseline) == {"new", "acting"}
    driver.start(returning, 10.0)
    driver.finish(returning, 11.0, 5900, is_last=True)
    assert driver.decide(3 * INTERVAL_S) == [new]
    assert paused(baseline) == set()


def test_with_decay_acting_programs_soon_leave_room() -> None:
    resumed = {}
    for decays in (False, True):
        driver, _ = driver_of(decays=decays)
        run_call(driver, "acting", 9000, 0.0)
        call = driver.arrive("new", 4000, 0.0)
        resumed[decays] = driver.decide(INTERVAL_S) == [call]
    assert resumed == {False: False, True: True}


def test_a_program_that_never_fits_is_resumed_after_half_an_hour() -> None:
    driver, _ = driver_of()
    call = driver.arrive("huge", CAPACITY, 0.0)
    assert driver.decide(MAX_PAUSE_S - INTERVAL_S) == []
    assert driver.decide(MAX_PAUSE_S) == [call]
