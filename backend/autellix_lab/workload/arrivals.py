"""Arrival times of programs, in seconds from the start of a run."""

from __future__ import annotations

import random
from collections.abc import Sequence

ARRIVAL_KINDS = ("poisson", "bursty", "at_once")
BURSTY_VARIATION = 3.0
"""Coefficient of variation of the gaps between bursty arrivals; a Poisson process has 1."""


def draw_arrivals(kind: str, count: int, rate_per_s: float, seed: int) -> tuple[float, ...]:
    """Draw the arrivals of one of ARRIVAL_KINDS; `at_once` ignores the rate.

    Raises:
        ValueError: if the rate is not above zero.
    """
    if kind == "poisson":
        return poisson_arrivals(count, rate_per_s, seed)
    if kind == "bursty":
        return bursty_arrivals(count, rate_per_s, seed, variation=BURSTY_VARIATION)
    return all_at_once(count)


def poisson_arrivals(count: int, rate_per_s: float, seed: int) -> tuple[float, ...]:
    """Draw a Poisson process that starts with an arrival; with one seed, two rates differ only in scale.

    Raises:
        ValueError: if the rate is not above zero.
    """
    _check_rate(rate_per_s)
    rng = random.Random(f"arrivals:{seed}")
    return _accumulate([rng.expovariate(1.0) / rate_per_s for _ in range(count - 1)], count)


def bursty_arrivals(count: int, rate_per_s: float, seed: int, *, variation: float) -> tuple[float, ...]:
    """Draw gaps from a gamma distribution; the first program arrives at time zero.

    `variation` is the coefficient of variation of the gaps: 1 is a Poisson process, more is burstier, less
    is steadier. With one seed, two rates differ only in scale.

    Raises:
        ValueError: if the rate or the variation is not above zero.
    """
    _check_rate(rate_per_s)
    if not variation > 0:
        raise ValueError(f"variation is {variation}; expected more than zero")
    rng = random.Random(f"arrivals:bursty:{seed}")
    shape = 1 / variation**2
    gaps = [rng.gammavariate(shape, 1 / shape) / rate_per_s for _ in range(count - 1)]
    return _accumulate(gaps, count)


def cut_bursts(times_s: Sequence[float], size: int) -> list[tuple[float, ...]]:
    """Cut arrivals into bursts of `size`, the last possibly smaller; each starts at time zero."""
    starts = range(0, len(times_s), size)
    return [tuple(time_s - times_s[start] for time_s in times_s[start : start + size]) for start in starts]


def all_at_once(count: int) -> tuple[float, ...]:
    """Return arrivals at time zero for every program (an offline batch)."""
    return (0.0,) * count


def recorded_arrivals(
    times_s: Sequence[float], count: int, rate_per_s: float, seed: int
) -> tuple[float, ...]:
    """Return `count` consecutive recorded arrivals, rescaled to a mean rate.

    The seed chooses the first, which arrives at time zero. Only the chosen arrivals are rescaled, so every
    run has the rate and keeps their burstiness.

    Args:
        times_s: recorded arrivals in order of time.
        count: number of arrivals.
        rate_per_s: programs per second over the chosen arrivals.
        seed: of the choice.

    Raises:
        ValueError: if the rate is not above zero, there are fewer recorded arrivals than wanted, or the
            chosen ones are all at one time.
    """
    _check_rate(rate_per_s)
    if len(times_s) < count:
        raise ValueError(f"there are {len(times_s)} recorded arrivals; expected {count} or more")
    if count < 2:
        return (0.0,) * count
    start = random.Random(f"arrivals:recorded:{seed}").randrange(len(times_s) - count + 1)
    taken = times_s[start : start + count]
    span_s = taken[-1] - taken[0]
    if not span_s > 0:
        raise ValueError(f"recorded arrivals {start} to {start + count - 1} are not spread in rising time")
    scale = (count - 1) / rate_per_s / span_s
    return tuple((time_s - taken[0]) * scale for time_s in taken)


def _check_rate(rate_per_s: float) -> None:
    if not rate_per_s > 0:
        raise ValueError(f"rate_per_s is {rate_per_s}; expected more than zero")


def _accumulate(gaps_s: Sequence[float], count: int) -> tuple[float, ...]:
    times = [0.0]
    for gap_s in gaps_s:
        times.append(times[-1] + gap_s)
    return tuple(times[:count])
