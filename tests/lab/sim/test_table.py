"""Ratios and throughput at equal latency, from sweeps made by hand."""

from __future__ import annotations

import math

import pytest

from autellix_lab.sim.experiment import Point, SweepResult, interval_mapping
from autellix_lab.sim.table import (
    LATENCY,
    RATIO_METRICS,
    equal_latency,
    format_interval,
    nearest_load,
    ratio_rows,
)
from autellix_lab.workload.statistics import Interval


def result(curves: dict[str, list[list[float]]]) -> SweepResult:
    """Give each case its latencies by load (0.5, 1.0, 1.5) and seed, all metrics alike."""
    return SweepResult(
        [
            Point(case, load, seed, load, dict.fromkeys(RATIO_METRICS.values(), value))
            for index, load in enumerate((0.5, 1.0, 1.5))
            for case, by_load in curves.items()
            for seed, value in enumerate(by_load[index])
        ]
    )


SWEEP = result({"slow": [[1, 2], [2, 4], [6, 12]], "fast": [[1, 2], [1, 2], [3, 8]]})


def test_equal_latency_is_taken_seed_by_seed() -> None:
    """The baseline is at the load nearest 1 by itself; the other has its latency 0.25 and 1/6 later."""
    slow, fast = equal_latency(SWEEP, "slow").values()

    assert slow == Interval(1.0, 0.0)
    assert fast is not None
    assert fast.mean == pytest.approx((1.25 + (1 + 1 / 6)) / 2)
    assert fast.half_width > 0


@pytest.mark.parametrize(
    "latency_s", [1.5, 5.0, 100.0], ids=["below in one", "above in one", "above in both"]
)
def test_a_latency_outside_the_range_in_any_seed_gives_no_load(latency_s: float) -> None:
    assert equal_latency(SWEEP, "slow", latency_s=latency_s)["fast"] is None


def test_ratio_rows_hold_every_other_case_at_every_load() -> None:
    """Ratios are means over the seeds' own ratios."""
    rows = ratio_rows(SWEEP, "slow")

    assert [(case, load) for load, case, _ in rows] == [("fast", 0.5), ("fast", 1.0), ("fast", 1.5)]
    assert [ratios[0].mean for _, _, ratios in rows] == pytest.approx([1, 0.5, (0.5 + 2 / 3) / 2])
    assert len(rows[0][2]) == len(RATIO_METRICS)


def test_loads_and_cases_are_those_of_the_sweep() -> None:
    """Loads rise, cases keep their order."""
    assert SWEEP.loads == [0.5, 1.0, 1.5]
    assert SWEEP.cases == ["slow", "fast"]
    assert LATENCY in RATIO_METRICS.values()


@pytest.mark.parametrize(("loads", "load"), [([0.5, 1.2], 1.2), ([0.5, 1.5], 0.5), ([3.0], 3.0)])
def test_the_nearest_load(loads: list[float], load: float) -> None:
    """Of two as near the lower."""
    assert nearest_load(loads) == load


def test_a_single_seed_has_no_interval() -> None:
    """Neither in text nor in JSON."""
    assert format_interval(Interval(0.5, math.inf)) == "0.50"
    assert format_interval(Interval(0.5, 0.1)) == "0.50 ± 0.10"
    assert interval_mapping(Interval(0.5, math.inf)) == {"mean": 0.5, "half_width": None}
    assert interval_mapping(None) is None
