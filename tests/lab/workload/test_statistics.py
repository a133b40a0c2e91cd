"""Statistics of latencies."""

from __future__ import annotations

import math

import pytest

from autellix_lab.workload.statistics import (
    Interval,
    confidence_interval,
    jain_index,
    percentile,
    statistics_of,
)


def test_percentiles_are_interpolated() -> None:
    assert percentile([1, 2, 3, 4, 5], 0.5) == 3
    assert percentile([0, 10], 0.95) == pytest.approx(9.5)
    assert percentile([7], 0.99) == 7
    assert statistics_of([4, 2])["mean"] == 3


def test_fairness_is_one_when_all_are_equal_and_one_nth_when_one_has_all() -> None:
    assert jain_index([2.0, 2.0, 2.0]) == pytest.approx(1.0)
    assert jain_index([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
    assert jain_index([1.0, 3.0]) == pytest.approx(0.8)
    assert jain_index([0.0]) == 1.0


def test_intervals_are_students() -> None:
    """The textbook case: 2, 4, 6 has standard error 2/sqrt(3), and t is 4.303 for two degrees of freedom."""
    interval = confidence_interval([2.0, 4.0, 6.0])
    assert interval.mean == 4.0
    assert interval.half_width == pytest.approx(4.303 * 2 / math.sqrt(3))
    assert confidence_interval([5.0]) == Interval(5.0, math.inf)
    assert confidence_interval([5.0] * 99) == Interval(5.0, 0.0)
