"""The load of the last six hours: what a sample keeps, how it is downsampled, and what memory it takes."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import pytest
from tests.observe.settled_calls import settled_call

from autellix_backend.console.explain.recent_load import (
    KEPT_S,
    MAX_BYTES,
    MAX_ENDS,
    PERIOD_S,
    POINTS,
    SAMPLES,
    Moment,
    PastWaits,
    RecentLoad,
    quantile,
)
from autellix_backend.observe.settled_call import Outcome

IDLE = Moment(0.0, 0.0, 0.0, 0.0, 0.0, math.nan, math.nan, math.nan)
START_S = 1_800_000_000.0


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = START_S

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def load(clock: Clock) -> RecentLoad:
    return RecentLoad(clock)


def sample(load: RecentLoad, clock: Clock, **fields: float) -> None:
    load.sample(IDLE._replace(**fields))
    clock.now += PERIOD_S


def known(values: list[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def test_waits_are_told_after_they_have_passed(load: RecentLoad, clock: Clock) -> None:
    """The last one of all samples, and the most at once of an hour."""
    assert load.waits() == PastWaits(was_used=False, began_at_s=None, last_at_s=None, most_programs=0)
    load.on_call_settled(settled_call())
    assert load.waits().was_used
    for _ in range(3):
        sample(load, clock)
    assert load.waits() == PastWaits(was_used=True, began_at_s=START_S, last_at_s=None, most_programs=0)

    # One sample alone has the most: a mean over a step of six hours would not.
    sample(load, clock, waiting_for_memory=3.0, waiting_for_slot=4.0, in_engine=9.0)
    sample(load, clock, waiting_for_slot=1.0)
    last_at_s = clock.now - PERIOD_S
    sample(load, clock)
    waits = load.waits()
    assert (waits.last_at_s, waits.most_programs) == (last_at_s, 7)

    clock.now += 2 * 3600.0
    sample(load, clock)
    waits = load.waits()
    assert (waits.last_at_s, waits.most_programs) == (last_at_s, 0)


def test_a_sample_that_comes_late_leaves_no_hole(load: RecentLoad, clock: Clock) -> None:
    """But where two are missing, nothing is known."""
    for _ in range(30):
        sample(load, clock, in_engine=3.0)
    clock.now += 1.2 * PERIOD_S
    for _ in range(3):
        sample(load, clock, in_engine=3.0)
    running = load.series(900.0).values["in_engine"]
    assert None not in running[running.index(3.0) : -1]
    clock.now += 2.2 * PERIOD_S
    for _ in range(3):
        sample(load, clock, in_engine=3.0)
    running = load.series(900.0).values["in_engine"]
    assert None in running[running.index(3.0) : -2]


def test_nothing_is_known_before_the_first_sample(load: RecentLoad) -> None:
    series = load.series(900.0)

    assert len(series.times) == POINTS + 1
    assert known(series.values["in_engine"]) == known(series.values["latency_p50_s"]) == []
    assert (series.totals.calls, series.totals.output_tokens_per_s, series.totals.cached_share) == (
        0,
        None,
        None,
    )


def test_a_step_has_the_mean_of_its_samples(load: RecentLoad, clock: Clock) -> None:
    for waiting in (2.0, 4.0):
        sample(load, clock, waiting_for_memory=waiting, kv_held=0.5)
    clock.now += KEPT_S - 120.0

    # Of 6 hours each step is 2 minutes long.
    series = load.series(KEPT_S)
    assert known(series.values["waiting_for_memory"]) == [3.0]
    assert known(series.values["kv_held"]) == [0.5]
    assert known(series.values["kv_kept"]) == []


def test_the_times_are_whole_steps_up_to_now(load: RecentLoad, clock: Clock) -> None:
    sample(load, clock)
    series = load.series(900.0)

    assert series.step_s == PERIOD_S
    assert all(time_s % PERIOD_S == 0 for time_s in series.times)
    assert clock.now < series.times[-1] <= clock.now + PERIOD_S


def test_calls_become_rates_shares_and_totals(load: RecentLoad, clock: Clock) -> None:
    call: dict[str, Any] = {"prompt_tokens": 100, "cached_tokens": 60, "output_tokens": 20, "preemptions": 2}
    sample(load, clock)
    load.on_call_settled(settled_call(**call))
    load.on_call_settled(settled_call(**call, outcome=Outcome.TIMEOUT))
    load.on_call_settled(settled_call(**call, outcome=Outcome.ABORTED))
    sample(load, clock)
    sample(load, clock)

    series = load.series(900.0)
    totals = series.totals
    assert (totals.calls, totals.failed_calls, totals.preemptions) == (3, 1, 6)
    assert totals.prompt_tokens_per_s == pytest.approx(300 / (3 * PERIOD_S))
    assert totals.output_tokens_per_s == pytest.approx(60 / (3 * PERIOD_S))
    assert totals.cached_share == pytest.approx(0.6)
    assert known(series.values["output_tokens_per_s"]) == [0.0, 60 / PERIOD_S, 0.0]
    assert known(series.values["cached_share"]) == [0.6]
    assert known(series.values["failed_calls_per_minute"]) == [0.0, 60 / PERIOD_S, 0.0]
    assert known(series.values["preemptions_per_minute"]) == [0.0, 6 * 60 / PERIOD_S, 0.0]


def test_a_call_of_unknown_cached_tokens_leaves_their_share_alone(load: RecentLoad, clock: Clock) -> None:
    load.on_call_settled(settled_call(prompt_tokens=100, cached_tokens=None))
    sample(load, clock)
    assert load.series(900.0).totals.cached_share is None
    load.on_call_settled(settled_call(prompt_tokens=100, cached_tokens=60))
    sample(load, clock)

    assert load.series(900.0).totals.cached_share == pytest.approx(0.6)


def test_programs_are_counted_for_a_minute_after_their_end(load: RecentLoad, clock: Clock) -> None:
    sample(load, clock)
    for duration_s in (1.0, 2.0, 9.0):
        load.on_program_ended(clock.now, duration_s)
    clock.now += 300.0
    sample(load, clock)

    series = load.series(900.0)
    assert max(known(series.values["programs_per_minute"])) == 3.0
    assert series.values["programs_per_minute"][-1] == 0.0
    # In each of the twelve steps of that minute.
    assert known(series.values["latency_p50_s"]) == [2.0] * 12
    assert series.totals.programs == 3
    assert series.totals.latency_p95_s == pytest.approx(8.3)


def test_what_is_before_the_range_is_left_out(load: RecentLoad, clock: Clock) -> None:
    load.on_program_ended(clock.now, 5.0)
    load.on_call_settled(settled_call())
    sample(load, clock, in_engine=3.0)
    clock.now += 1000.0

    assert known(load.series(900.0).values["in_engine"]) == []
    assert (load.series(900.0).totals.programs, load.series(900.0).totals.calls) == (0, 0)
    assert (load.series(3600.0).totals.programs, load.series(3600.0).totals.calls) == (1, 1)


@pytest.mark.parametrize(("age_s", "expected_s"), [(10.0, 60.0), (300.0, 300.0), (2000.0, 900.0)])
def test_a_series_begins_with_the_first_sample(
    load: RecentLoad, clock: Clock, age_s: float, expected_s: float
) -> None:
    sample(load, clock)
    clock.now += age_s - PERIOD_S
    series = load.series(900.0)

    assert series.times[-1] - series.times[0] == pytest.approx(expected_s, abs=2 * PERIOD_S)


def test_the_oldest_sample_makes_room(load: RecentLoad, clock: Clock) -> None:
    for _ in range(SAMPLES):
        sample(load, clock, in_engine=1.0)
    sample(load, clock, in_engine=7.0)

    series = load.series(KEPT_S)
    assert len(series.times) == POINTS + 1
    assert max(known(series.values["in_engine"])) > 1.0
    assert len(known(series.values["in_engine"])) >= POINTS - 1


def test_its_memory_has_a_bound() -> None:
    clock = Clock()
    tracemalloc.start()
    try:
        load = RecentLoad(clock)
        for number in range(SAMPLES + 10):
            sample(load, clock)
            for _ in range(5):
                load.on_program_ended(clock.now, 1.5 + number)
        used_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert 5 * SAMPLES > MAX_ENDS
    assert used_bytes < MAX_BYTES


@pytest.mark.parametrize(("part", "expected"), [(0.0, 1.0), (0.5, 2.5), (1.0, 4.0)])
def test_a_quantile_is_interpolated(part: float, expected: float) -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], part) == expected
