from __future__ import annotations

import pytest

from autellix_backend.workload.arrivals import all_at_once, poisson_arrivals


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


def test_all_at_once() -> None:
    assert all_at_once(2) == (0.0, 0.0)
