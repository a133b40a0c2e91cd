"""Sweep results: ratios to a baseline, throughput at equal latency, and the report of both."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from autellix_lab.sim.experiment import SweepResult, interval_mapping, summarise_runs
from autellix_lab.sim.figures.equal_latency import rate_at
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


def nearest_load(loads: Sequence[float], wanted: float = 1.0) -> float:
    """Return the load nearest to the wanted one; the lower one of a tie."""
    return min(loads, key=lambda load: (abs(load - wanted), load))


def ratio_rows(result: SweepResult, baseline: str) -> list[tuple[float, str, list[Interval]]]:
    """Return load, case and the ratios of RATIO_METRICS to the baseline's, taken seed by seed."""
    return [
        (load, case, [result.ratio(case, baseline, load, name) for name in RATIO_METRICS.values()])
        for load in result.loads
        for case in result.cases
        if case != baseline
    ]


def equal_latency(
    result: SweepResult, baseline: str, *, latency_s: float | None = None
) -> dict[str, Interval | None]:
    """Return, by case, the load at which its mean token latency is the wanted one.

    A load outside the measured range in any seed is None: a mean over the other seeds would be biased.

    Args:
        result: of a sweep over two loads or more.
        baseline: its latency at the load nearest 1 is wanted, seed by seed.
        latency_s: wanted latency (s per token) in place of the baseline's.
    """
    loads = result.loads
    wanted = result.values(baseline, nearest_load(loads), LATENCY)
    rows: dict[str, Interval | None] = {}
    for case in result.cases:
        by_load = [result.values(case, load, LATENCY) for load in loads]
        found = [
            rate_at(list(zip(loads, curve, strict=True)), target if latency_s is None else latency_s)
            for curve, target in zip(zip(*by_load, strict=True), wanted, strict=True)
        ]
        known = [load for load in found if load is not None]
        rows[case] = confidence_interval(known) if len(known) == len(found) else None
    return rows


def format_interval(interval: Interval, digits: int = 2) -> str:
    """Return a mean with its half width; a single seed has none."""
    if math.isinf(interval.half_width):
        return f"{interval.mean:.{digits}f}"
    return f"{interval.mean:.{digits}f} ± {interval.half_width:.{digits}f}"


def sweep_report(
    result: SweepResult, baseline: str, equal: Mapping[str, Interval | None], latency_s: float | None
) -> dict[str, object]:
    """Return all runs, their means, ratios to the baseline and loads at equal latency."""
    ratios = [
        {"case": case, "load": load}
        | {name: interval_mapping(ratio) for name, ratio in zip(RATIO_METRICS.values(), found, strict=True)}
        for load, case, found in ratio_rows(result, baseline)
    ]
    return {
        "baseline": baseline,
        "runs": [dataclasses.asdict(point) for point in result.points],
        "summary": summarise_runs(result, sorted(result.points[0].metrics)),
        "ratios": ratios,
        "at_latency_s": latency_s,
        "equal_latency": [{"case": case, "load": interval_mapping(load)} for case, load in equal.items()],
    }


def has_no_queue(result: SweepResult, baseline: str) -> bool:
    """Return whether calls hardly wait even at the highest load, so that policies cannot differ."""
    highest = result.loads[-1]
    wait_s = result.interval(baseline, highest, "wait_s.mean").mean
    return wait_s < IDLE_WAIT_SHARE * result.interval(baseline, highest, "latency_s.mean").mean
