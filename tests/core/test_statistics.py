"""The measurements of programs and tokens."""

# Hypothesis is skipped by the type checker, and its decorators with it.
# mypy: disallow-untyped-decorators=False

from __future__ import annotations

import math
from statistics import pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autellix_backend.core.policies.plas import Plas
from autellix_backend.core.statistics import (
    FADING,
    KNOWN_PROGRAMS,
    MAX_TENANTS,
    PRIOR_PROGRAMS,
    PRIOR_SPREAD,
    QUIET_SHARE,
    SIZE_WINDOW,
    WARM_UP_ENDS,
    ProgramStatistics,
    SizeSpread,
    TokenCost,
)
from autellix_backend.core.table import ProcessTable


def run_one_by_one(statistics: ProgramStatistics, programs: int, seconds: float, start: float = 0.0) -> float:
    """Run programs of the same duration, each after the one before it; return the time."""
    now = start
    for _ in range(programs):
        statistics.on_live(now)
        now += seconds
        statistics.on_idle(now)
        statistics.on_ended(1.0, now)
    return now


def test_at_first_the_time_so_far_counts_as_one_more_interval() -> None:
    statistics = ProgramStatistics()
    for _ in range(4):
        statistics.on_live(10.0)
    statistics.on_ended(1.0, 16.0)

    assert statistics.response_s == pytest.approx(4 * 6.0 / 2)


@pytest.mark.parametrize("programs", [WARM_UP_ENDS, 10 * WARM_UP_ENDS])
def test_the_response_time_is_that_of_programs_that_ran_alone(programs: int) -> None:
    statistics = ProgramStatistics()
    now = run_one_by_one(statistics, programs, 3.0)
    statistics.on_live(now)

    assert statistics.response_s == pytest.approx(3.0)


@pytest.mark.parametrize("programs", [5, WARM_UP_ENDS, 10 * WARM_UP_ENDS])
def test_the_response_time_is_bounded_where_no_ends_are_announced(programs: int) -> None:
    table, now = ProcessTable(), 0.0
    for number in range(programs):
        table.begin(str(number), "c", now)
        now += 3.0
        table.complete(
            str(number), "c", now, policy=Plas(), inherited_service_s=0.0, service_s=3.0, wait_s=0.0
        )
    table.begin("last", "c", now)

    assert 3.0 <= table.statistics.response_s <= 3.0 / QUIET_SHARE


@pytest.mark.parametrize("programs", [5, WARM_UP_ENDS, 10 * WARM_UP_ENDS])
def test_programs_between_calls_change_nothing_as_long_as_more_have_ended(programs: int) -> None:
    statistics = ProgramStatistics()
    now = run_one_by_one(statistics, programs, 3.0)
    statistics.on_live(now)
    before_s = statistics.response_s

    statistics.begun = 2 * programs
    assert statistics.response_s == before_s


def test_the_response_time_grows_with_the_programs_that_share_the_engine() -> None:
    statistics = ProgramStatistics()
    run_one_by_one(statistics, 2 * WARM_UP_ENDS, 3.0)
    for _ in range(5):
        statistics.on_live(1000.0)

    assert statistics.response_s == pytest.approx(5 * 3.0)


def test_older_intervals_fade() -> None:
    statistics = ProgramStatistics()
    now = run_one_by_one(statistics, 2 * WARM_UP_ENDS, 1.0)
    now = run_one_by_one(statistics, 1, 101.0, now)
    statistics.on_live(now)
    assert statistics.response_s == pytest.approx(1.0 + FADING * 100.0)

    statistics.on_idle(now)
    now = run_one_by_one(statistics, 300, 2.0, now)
    statistics.on_live(now)
    assert statistics.response_s == pytest.approx(2.0, rel=1e-3)


@pytest.mark.parametrize("programs", [5, 2 * WARM_UP_ENDS])
def test_a_night_without_calls_changes_nothing(programs: int) -> None:
    statistics = ProgramStatistics()
    now = run_one_by_one(statistics, programs, 2.0)
    statistics.on_live(now)
    before_s = statistics.response_s
    statistics.on_idle(now)

    now += 12 * 3600
    statistics.on_ended(0.0, now)
    statistics.on_live(now)

    assert statistics.response_s == pytest.approx(before_s, rel=0.2)


@pytest.mark.parametrize("programs", [40, 400])
def test_programs_that_expire_together_count_like_those_that_end_one_by_one(programs: int) -> None:
    one_by_one, together = ProgramStatistics(), ProgramStatistics()
    for statistics in (one_by_one, together):
        statistics.on_live(0.0)
    for index in range(programs):
        one_by_one.on_ended(1.0, index + 1.0)
        together.on_ended(1.0, 20.0 * (index // 20 + 1))

    assert together.response_s == pytest.approx(one_by_one.response_s)


def test_each_tenant_has_a_spread_of_its_own() -> None:
    statistics = ProgramStatistics()
    for index in range(SIZE_WINDOW):
        statistics.on_ended(500.0, index, "even")
        statistics.on_ended(math.exp(5 + 5 * (-1) ** index), index, "wide")

    assert statistics.sizes_of("even").value < 0.15
    assert statistics.sizes_of("wide").value == statistics.spread > 4


def test_the_tenants_whose_sizes_count_are_bounded() -> None:
    statistics = ProgramStatistics()
    statistics.sizes_of("first").known = 2.0
    for index in range(MAX_TENANTS - 1):
        statistics.sizes_of(f"{index}")
    assert statistics.sizes_of("first").known == 2.0
    statistics.sizes_of("last")

    assert len(statistics.sizes) == MAX_TENANTS
    assert "0" not in statistics.sizes


def test_programs_without_work_have_no_size() -> None:
    statistics = ProgramStatistics()
    for index in range(SIZE_WINDOW):
        statistics.on_ended(0.0, index)

    assert statistics.sizes_of("").value == pytest.approx(PRIOR_SPREAD)


def test_a_spread_that_is_known_from_elsewhere_is_the_beginning() -> None:
    sizes = SizeSpread()
    sizes.known = 1.3
    assert sizes.value == 1.3

    for _ in range(SIZE_WINDOW):
        sizes.add(100.0)

    assert sizes.value == pytest.approx(1.3 * math.sqrt(KNOWN_PROGRAMS / (KNOWN_PROGRAMS + SIZE_WINDOW)))


@given(st.lists(st.floats(-20, 20), max_size=SIZE_WINDOW + 50))
def test_the_priors_programs_weigh_as_much_as_ended_ones(log_works: list[float]) -> None:
    sizes = SizeSpread()
    for log_work in log_works:
        sizes.add(math.exp(log_work))

    last = log_works[-SIZE_WINDOW:]
    mean = sum(last) / len(last) if last else 0.0
    prior = [mean - PRIOR_SPREAD, mean + PRIOR_SPREAD] * (PRIOR_PROGRAMS // 2)
    assert sizes.value == pytest.approx(pstdev([*last, *prior]), abs=1e-6)
    assert len(sizes) == len(last)


def test_a_token_costs_its_share_of_the_steps() -> None:
    cost = TokenCost(0.005)
    assert cost.seconds == 0.005

    cost.observe(100.0, 0.2)
    assert cost.seconds == pytest.approx(0.002)


def test_equal_steps_may_be_counted_together() -> None:
    together, singly = TokenCost(0.005), TokenCost(0.005)
    for cost in (together, singly):
        cost.observe(10.0, 1.0)
    together.observe(100.0, 0.2, steps=300)
    for _ in range(300):
        singly.observe(100.0, 0.2)

    assert together.seconds == pytest.approx(singly.seconds, rel=1e-12)


def test_older_steps_fade() -> None:
    cost = TokenCost(0.005)
    cost.observe(100.0, 100.0)
    cost.observe(100.0, 0.1, steps=20_000)

    assert cost.seconds == pytest.approx(0.001, rel=1e-3)


def test_steps_without_work_teach_nothing() -> None:
    cost = TokenCost(0.005)
    cost.observe(0.0, 1.0, steps=10**6)
    assert cost.seconds == 0.005

    cost.observe(100.0, 0.2)
    cost.observe(0.0, 1.0, steps=10**6)
    assert cost.seconds == pytest.approx(0.002)
