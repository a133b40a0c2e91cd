"""Sweep results: ratios to a baseline, throughput at equal latency, and the report of both."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from autellix_lab.sim.experiment import SweepResult, summarise_runs
from autellix_lab.workload.statistics import Interval, confidence_interval

LATENCY = "token_latency_s.mean"
"""The paper's metric."""
RATIO_METRICS = {
    "token latency, mean": "token_latency_s.mean",
    "token latency, p95": "token_latency_s.p95",
    "token latency, p99": "token_latency_s.p99",
    "latency, mean": "latency_s.mean",
    "latency, p99": "latency_s.p99",
}
"""Metric by its title."""
IDLE_WAIT_SHARE = 0.01
"""Least share of their latency that programs must wait, for a comparison of policies to mean anything."""


@dataclass(frozen=True, slots=True)
class RatioRow:
    """One case at one load: each metric over the baseline's, by title."""

    case: str
    load: float
    ratios: dict[str, Interval]


@dataclass(frozen=True, slots=True)
class EqualLatency:
    """The load at which a case has the wanted latency; None outside the measured range."""

    case: str
    load: Interval | None
    below: int
    """Seeds whose latency exceeds the wanted one even at the lowest load."""
    above: int
    """Seeds whose latency stays below it up to the highest load."""


def nearest_load(loads: Sequence[float], wanted: float = 1.0) -> float:
    """Return the load nearest to the wanted one; the lower one of a tie."""
    return min(loads, key=lambda load: (abs(load - wanted), load))


def ratio_rows(result: SweepResult, baseline: str) -> list[RatioRow]:
    """Return every case but the baseline at every load, by load; ratios are taken seed by seed."""
    return [
        RatioRow(
            case,
            load,
            {title: result.ratio(case, baseline, load, name) for title, name in RATIO_METRICS.items()},
        )
        for load in result.loads
        for case in result.cases
        if case != baseline
    ]


def load_at(curve: Sequence[tuple[float, float]], latency_s: float) -> float:
    """Return the load at which a curve of (load, latency) first rises above a latency, interpolated linearly.

    Args:
        curve: at least one point, in rising order of load.
        latency_s: the wanted latency.

    Returns:
        The load; -inf if the first point is above, inf if no point reaches it.
    """
    if curve[0][1] > latency_s:
        return -math.inf
    previous_load, previous_s = curve[0]
    for load, value_s in curve:
        if value_s > latency_s:
            share = (latency_s - previous_s) / (value_s - previous_s)
            return previous_load + share * (load - previous_load)
        previous_load, previous_s = load, value_s
    return previous_load if previous_s == latency_s else math.inf


def equal_latency(
    result: SweepResult, baseline: str, *, latency_s: float | None = None
) -> list[EqualLatency]:
    """Return, for each case, the load at which its mean token latency is the wanted one.

    Args:
        result: of a sweep over two loads or more.
        baseline: its latency at the load nearest 1 is wanted, seed by seed.
        latency_s: wanted latency (s per token) in place of the baseline's.
    """
    loads = result.loads
    if latency_s is None:
        wanted = result.values(baseline, nearest_load(loads), LATENCY)
    else:
        wanted = [latency_s] * len(result.values(baseline, loads[0], LATENCY))
    rows: list[EqualLatency] = []
    for case in result.cases:
        by_load = [result.values(case, load, LATENCY) for load in loads]
        found = [
            load_at([(load, values[seed]) for load, values in zip(loads, by_load, strict=True)], target)
            for seed, target in enumerate(wanted)
        ]
        below, above = found.count(-math.inf), found.count(math.inf)
        # A mean over only the seeds inside the range would be biased.
        inside = None if below or above else confidence_interval(found)
        rows.append(EqualLatency(case, inside, below, above))
    return rows


def format_interval(interval: Interval, digits: int = 2) -> str:
    """Return a mean with its half width; a single seed has none."""
    if math.isinf(interval.half_width):
        return f"{interval.mean:.{digits}f}"
    return f"{interval.mean:.{digits}f} ± {interval.half_width:.{digits}f}"


def interval_mapping(interval: Interval | None) -> dict[str, float | None] | None:
    """Return an interval as plain JSON values, which have no infinity."""
    if interval is None:
        return None
    half_width = None if math.isinf(interval.half_width) else interval.half_width
    return {"mean": interval.mean, "half_width": half_width}


def sweep_report(
    result: SweepResult, baseline: str, equal: Sequence[EqualLatency], latency_s: float | None
) -> dict[str, object]:
    """Return all runs, their means, ratios to the baseline and loads at equal latency."""
    ratios = [
        {
            "case": row.case,
            "load": row.load,
            **{RATIO_METRICS[title]: interval_mapping(interval) for title, interval in row.ratios.items()},
        }
        for row in ratio_rows(result, baseline)
    ]
    equal_rows = [
        {
            "case": row.case,
            "load": interval_mapping(row.load),
            "seeds_below_range": row.below,
            "seeds_above_range": row.above,
        }
        for row in equal
    ]
    return {
        "baseline": baseline,
        "runs": [dataclasses.asdict(point) for point in result.points],
        "summary": summarise_runs(result, sorted(result.points[0].metrics)),
        "ratios": ratios,
        "at_latency_s": latency_s,
        "equal_latency": equal_rows,
    }


def has_no_queue(result: SweepResult, baseline: str) -> bool:
    """Return whether calls hardly wait even at the highest load, so that policies cannot differ."""
    highest = result.loads[-1]
    wait_s = result.interval(baseline, highest, "wait_s.mean").mean
    return wait_s < IDLE_WAIT_SHARE * result.interval(baseline, highest, "latency_s.mean").mean
