"""Who is sent first by llm-d's queue, and how many calls it sends."""

from __future__ import annotations

import pytest
from tests.lab.sim.baselines.driver import Driver

from autellix_lab.sim.baselines.llm_d import HALF_LIFE_S, Attained, LeastAttainedService
from autellix_lab.sim.kv import Segment
from autellix_lab.sim.model import EngineModel


def driver_of(kv_blocks: int | None = None) -> tuple[Driver, LeastAttainedService]:
    baseline = LeastAttainedService(EngineModel(kv_blocks=kv_blocks))
    return Driver(baseline), baseline


def fill_queue(driver: Driver, now: float) -> list[str]:
    """Send as many calls as the engine may have waiting."""
    for number in range(5):
        driver.arrive(f"filler{number}", 10, now)
    return driver.decide(now)


def test_the_engine_gets_no_more_than_its_short_queue() -> None:
    driver, _ = driver_of()
    sent = fill_queue(driver, 0.0)
    late = driver.arrive("late", 10, 1.0)
    assert len(sent) == 5
    assert driver.decide(1.0) == []

    driver.start(sent[0], 2.0)

    assert driver.decide(2.0) == [late]
    assert driver.order() == [*sent, late]


def test_no_call_is_sent_while_kv_memory_is_used() -> None:
    driver, baseline = driver_of(kv_blocks=10)
    segment = Segment(None, 0)
    baseline.blocks.kv.hold(segment)
    baseline.blocks.kv.allocate(segment, 8)
    call = driver.arrive("one", 10, 0.0)
    assert driver.decide(0.0) == []

    baseline.blocks.kv.release(segment)

    assert driver.decide(1.0) == [call]


def test_the_least_served_program_goes_first_and_each_program_in_its_order() -> None:
    driver, _ = driver_of()
    served = driver.arrive("served", 100, 0.0)
    driver.decide(0.0)
    driver.start(served, 0.0)
    driver.finish(served, 1.0, 150)
    blockers = fill_queue(driver, 1.0)
    again = [driver.arrive("served", 10, 2.0), driver.arrive("served", 10, 2.0)]
    new = driver.arrive("new", 10, 2.0)
    for blocker in blockers[:3]:
        driver.start(blocker, 3.0)

    assert driver.decide(3.0) == [new, *again]


def test_a_long_wait_makes_up_for_a_fifth_of_the_score() -> None:
    """With services 0, 1/10 and 1 of the range, ten seconds of waiting outweigh the tenth."""
    driver, _ = driver_of()
    for program, tokens in (("some", 10), ("most", 100)):
        call = driver.arrive(program, tokens, 0.0)
        driver.decide(0.0)
        driver.start(call, 0.0)
        driver.finish(call, 0.0, tokens)
    blockers = fill_queue(driver, 0.0)
    some = driver.arrive("some", 1, 0.0)
    most = driver.arrive("most", 1, 9.0)
    none = driver.arrive("none", 1, 10.0)
    for blocker in blockers:
        driver.start(blocker, 10.0)

    assert driver.decide(10.0) == [some, none, most]


def test_service_weighs_output_twice_and_halves_in_a_minute() -> None:
    driver, baseline = driver_of()
    call = driver.arrive("one", 100, 0.0)
    driver.decide(0.0)
    driver.finish(call, 0.0, 150)
    attained = baseline._flows["one"].attained
    assert attained.at(0.0) == 100 + 2 * 50
    assert attained.at(HALF_LIFE_S) == pytest.approx(100)
    assert Attained().at(5.0) == 0
