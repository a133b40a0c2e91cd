"""Throughput at equal latency: where two curves of latency over arrival rate reach the same latency."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from autellix_lab.sim.experiment import SweepResult
from autellix_lab.workload.statistics import Interval, confidence_interval, mean_of

Curve = Sequence[tuple[float, float]]
"""Points (rate, latency) in order of rate."""

LEVELS = 200
"""Latencies that are tried between the lowest and the highest that both curves have."""


def rate_at(points: Curve, level: float) -> float | None:
    """Return the first rate at which a curve rises to a latency, interpolated linearly; None if never."""
    if not points or points[0][1] > level:
        return None
    for (x0, y0), (x1, y1) in pairwise(points):
        if y0 <= level <= y1 and y1 > y0:
            return x0 + (x1 - x0) * (level - y0) / (y1 - y0)
    return None


def gain_at(ours: Curve, base: Curve, level: float) -> float | None:
    """Return our rate over the baseline's at a latency; None if a curve does not reach it."""
    our_rate, base_rate = rate_at(ours, level), rate_at(base, level)
    return our_rate / base_rate if our_rate is not None and base_rate else None


def curve(result: SweepResult, case: str, metric: str) -> list[tuple[float, float]]:
    """Return the means over the seeds by rate."""
    found = []
    for load in result.loads:
        points = [point for point in result.points if (point.case, point.load) == (case, load)]
        found.append((mean_of([p.rate_per_s for p in points]), mean_of([p.metrics[metric] for p in points])))
    return found


def seed_curves(result: SweepResult, case: str, metric: str) -> dict[int, list[tuple[float, float]]]:
    """Return each seed's own curve."""
    curves: dict[int, list[tuple[float, float]]] = {}
    for point in result.points:
        if point.case == case:
            curves.setdefault(point.seed, []).append((point.rate_per_s, point.metrics[metric]))
    return curves


def best_gain(
    result: SweepResult, case: str, baseline: str, metric: str, level: float | None = None
) -> Interval | None:
    """Return how many times the baseline's rate is served at a latency; None if it cannot be taken.

    The latency is by default the one at which the mean curves are furthest apart, among those that most seeds
    reach with both of their own; the ratio there is taken seed by seed.
    """
    ours, base = curve(result, case, metric), curve(result, baseline, metric)
    pairs = list(
        zip(
            seed_curves(result, case, metric).values(),
            seed_curves(result, baseline, metric).values(),
            strict=True,
        )
    )
    best: tuple[int, float, float] | None = None
    for y in _common_levels(ours, base) if level is None else [level]:
        seeds = len(_ratios(pairs, y))
        gain = gain_at(ours, base, y)
        if gain is not None and 2 * seeds > len(pairs):
            best = max(best or (0, 0.0, 0.0), (seeds, gain, y))
    if best is None:
        return None
    return confidence_interval(_ratios(pairs, best[2]))


def _ratios(pairs: Sequence[tuple[Curve, Curve]], level: float) -> list[float]:
    return [gain for ours, base in pairs if (gain := gain_at(ours, base, level)) is not None]


def _common_levels(ours: Curve, base: Curve) -> list[float]:
    low = max(ours[0][1], base[0][1])
    high = min(max(y for _, y in ours), max(y for _, y in base))
    if high <= low:
        return []
    return [low + (high - low) * step / LEVELS for step in range(LEVELS + 1)]
