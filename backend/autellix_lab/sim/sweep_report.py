"""The report of a sweep as plain JSON values."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from autellix_lab.sim.experiment import SweepResult, summarise_runs
from autellix_lab.sim.table import RATIO_METRICS, EqualLatency, interval_mapping, loads_of, ratio_rows

__all__ = ["has_no_queue", "sweep_report"]

IDLE_WAIT_SHARE = 0.01
"""Least share of their latency that programs must wait, for a comparison of policies to mean anything."""


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
    highest = loads_of(result)[-1]
    wait_s = result.interval(baseline, highest, "wait_s.mean").mean
    return wait_s < IDLE_WAIT_SHARE * result.interval(baseline, highest, "latency_s.mean").mean
