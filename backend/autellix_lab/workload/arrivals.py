"""When programs arrive, in seconds from the start of a run."""

from __future__ import annotations

import random
from collections.abc import Sequence


def poisson_arrivals(count: int, rate_per_s: float, seed: int) -> tuple[float, ...]:
    """Draw a Poisson process; the first program arrives at once. One seed at two rates differs only in scale.

    Raises:
        ValueError: if the rate is not above zero.
    """
    _check_rate(rate_per_s)
    rng = random.Random(f"arrivals:{seed}")
    return _accumulate([rng.expovariate(1.0) / rate_per_s for _ in range(count - 1)], count)


def bursty_arrivals(count: int, rate_per_s: float, seed: int, *, variation: float) -> tuple[float, ...]:
    """Draw gaps from a gamma distribution; the first program arrives at once.

    `variation` is the gaps' coefficient of variation, standard deviation over mean: 1 is a Poisson process,
    more is burstier, less is steadier. One seed at two rates differs only in scale.

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


def all_at_once(count: int) -> tuple[float, ...]:
    """Let every program arrive at the start (an offline batch)."""
    return (0.0,) * count


def recorded_arrivals(
    times_s: Sequence[float], count: int, rate_per_s: float, seed: int
) -> tuple[float, ...]:
    """Take `count` arrivals in a row from recorded ones and rescale them to a mean rate.

    The seed chooses where to begin; the first program taken arrives at once. Only the stretch taken is
    rescaled, so the rate is met in every run and the burstiness inside the stretch is kept.

    Args:
        times_s: recorded arrivals in order of time, as `read_arrivals` returns them.
        count: how many to take.
        rate_per_s: programs per second over the stretch.
        seed: of the start.

    Raises:
        ValueError: if the rate is not above zero, there are fewer recorded arrivals than wanted, or those of
            the stretch are all at one time.
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
