"""Arrival processes: their rate, their burstiness, and what one seed keeps."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean, pstdev

import pytest

from autellix_lab.workload.arrivals import (
    all_at_once,
    bursty_arrivals,
    cut_bursts,
    poisson_arrivals,
    recorded_arrivals,
)

RECORDED = [float(second**2) for second in range(200)]


def gaps(times: tuple[float, ...]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(times)]


def test_the_rate_is_met() -> None:
    times = poisson_arrivals(4000, 2.0, seed=1)
    assert times[0] == 0.0
    assert list(times) == sorted(times)
    assert pytest.approx(2000, rel=0.1) == times[-1]


def test_a_rate_only_scales_a_seed() -> None:
    slow, fast = poisson_arrivals(50, 1.0, seed=3), poisson_arrivals(50, 4.0, seed=3)
    assert slow == pytest.approx([4 * time for time in fast])


def test_a_rate_of_zero_is_rejected() -> None:
    with pytest.raises(ValueError, match="rate_per_s is 0"):
        poisson_arrivals(3, 0, seed=0)


def test_bursts_keep_their_gaps_and_start_at_zero() -> None:
    times = poisson_arrivals(7, 2.0, seed=1)
    bursts = cut_bursts(times, 3)
    assert [len(burst) for burst in bursts] == [3, 3, 1]
    assert {burst[0] for burst in bursts} == {0.0}
    assert gaps(bursts[1]) == pytest.approx(gaps(times[3:6]))
    assert cut_bursts((), 3) == []


def test_all_at_once() -> None:
    assert all_at_once(2) == (0.0, 0.0)


@pytest.mark.parametrize("variation", [0.5, 1.0, 3.0])
def test_bursts_have_the_variation_and_the_rate(variation: float) -> None:
    """Standard deviation over mean of the gaps is the one asked for."""
    found = gaps(bursty_arrivals(20_000, 4.0, seed=1, variation=variation))

    assert fmean(found) == pytest.approx(0.25, rel=0.1)
    assert pstdev(found) / fmean(found) == pytest.approx(variation, rel=0.1)


def test_bursts_scale_with_the_rate() -> None:
    """One seed at two rates differs only in scale."""
    slow, fast = (bursty_arrivals(50, rate, seed=3, variation=2) for rate in (1.0, 4.0))

    assert slow == pytest.approx([4 * time for time in fast])
    assert slow != bursty_arrivals(50, 1.0, seed=4, variation=2)


def test_a_variation_of_zero_is_rejected() -> None:
    """A gamma distribution has none."""
    with pytest.raises(ValueError, match="variation is 0; expected more than zero"):
        bursty_arrivals(3, 1.0, seed=0, variation=0)


def test_recorded_arrivals_meet_the_rate() -> None:
    """The stretch is rescaled as a whole, so its gaps keep their ratios."""
    times = recorded_arrivals(RECORDED, 50, 2.0, seed=1)

    assert times[0] == 0.0
    assert times[-1] == pytest.approx(49 / 2.0)
    ratios = [later / earlier for earlier, later in pairwise(gaps(times))]
    starts = [start for start in range(150) if (2 * start + 3) / (2 * start + 1) == pytest.approx(ratios[0])]
    assert len(starts) == 1


def test_the_seed_chooses_the_stretch() -> None:
    """One seed gives one stretch, others give others."""
    assert recorded_arrivals(RECORDED, 50, 2.0, seed=1) == recorded_arrivals(RECORDED, 50, 2.0, seed=1)
    assert len({recorded_arrivals(RECORDED, 50, 2.0, seed=seed) for seed in range(9)}) > 5


@pytest.mark.parametrize("count", [0, 1])
def test_one_recorded_arrival_needs_no_scale(count: int) -> None:
    """A single program arrives at once."""
    assert recorded_arrivals(RECORDED, count, 2.0, seed=0) == (0.0,) * count


def test_too_few_or_equal_recorded_arrivals_are_rejected() -> None:
    """Neither can be rescaled to a rate."""
    with pytest.raises(ValueError, match="there are 3 recorded arrivals; expected 4 or more"):
        recorded_arrivals([0, 1, 2], 4, 1.0, seed=0)
    with pytest.raises(ValueError, match="recorded arrivals 0 to 2 are not spread"):
        recorded_arrivals([1, 1, 1], 3, 1.0, seed=0)
