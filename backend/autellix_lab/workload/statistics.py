"""Statistics of program latencies: pure functions over numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# Two-sided 95 % quantiles of Student's t by degrees of freedom; beyond the last, the normal's.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_NORMAL95 = 1.960


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over independent runs with its 95 % confidence interval, mean +/- half_width."""

    mean: float
    half_width: float
    """Infinite for a single run."""


def mean_of(values: Sequence[float]) -> float:
    """Return the mean of at least one value."""
    return sum(values) / len(values)


def confidence_interval(values: Sequence[float]) -> Interval:
    """Return the mean of at least one value with Student's 95 % interval."""
    count = len(values)
    mean = mean_of(values)
    if count == 1:
        return Interval(mean, math.inf)
    quantile = _T95[count - 2] if count - 2 < len(_T95) else _NORMAL95
    return Interval(mean, quantile * standard_error(values))


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean of at least one value; infinite for one."""
    count = len(values)
    if count == 1:
        return math.inf
    mean = mean_of(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1) / count)


def statistics_of(values: Sequence[float]) -> dict[str, float]:
    """Return mean, p50, p95 and p99 of at least one value."""
    ordered = sorted(values)
    return {
        "mean": mean_of(ordered),
        "p50": percentile(ordered, 0.50),
        "p95": percentile(ordered, 0.95),
        "p99": percentile(ordered, 0.99),
    }


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return a percentile of sorted values, interpolated between neighbours."""
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def jain_index(values: Sequence[float]) -> float:
    """Return Jain's fairness index of at least one value: 1 if all are equal, 1/n if one has everything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares > 0 else 1.0
