"""The measurement of a fleet: its simulation makes every event, and its sums hold."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def scale(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the benchmark's module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import fleet_scale

    return fleet_scale


async def test_each_event_of_a_fleet_is_timed(scale: Any) -> None:
    fleet = scale.Fleet(engines=2, programs=30)
    await fleet.run(decisions=100)
    assert fleet.times.keys() == set(scale.EVENTS)
    assert len(fleet.times["decision"]) >= 100
    assert 0 < fleet.most_open <= 30


async def test_the_longest_step_between_two_pauses_counts(scale: Any) -> None:
    async def work() -> None:
        for seconds in (0.001, 0.02, 0.001):
            until_s = time.thread_time() + seconds
            while time.thread_time() < until_s:
                pass
            await asyncio.sleep(0)

    assert 0.02 <= await scale.longest_step_s(work()) < 0.03


def test_the_spread_is_the_mean_median_and_99th_percentile(scale: Any) -> None:
    assert scale.spread([*map(float, range(101))]) == (50.0, 50.0, 99.0)


def test_a_core_of_redis_carries_calls_with_their_share_of_ends_and_rounds(scale: Any) -> None:
    costs = {"call": 150.0, "answer": 40.0, "end": 60.0, "read": 2.0, "round": 100.0}
    # Of 8 calls: 190 + (60 + 50 x 2) / 8 = 210 us, in what 50 rounds of 100 us leave.
    assert scale.CALLS == 8
    assert scale.calls_per_s(costs, gateways=50) == pytest.approx((1e6 - 5000) / 210)
