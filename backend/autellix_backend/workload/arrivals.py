"""When programs arrive, in seconds from the start of a run."""

from __future__ import annotations

import random


def poisson_arrivals(count: int, rate_per_s: float, seed: int) -> tuple[float, ...]:
    """Draw a Poisson process; the first program arrives at once. One seed at two rates differs only in scale.

    Raises:
        ValueError: if the rate is not above zero.
    """
    if not rate_per_s > 0:
        raise ValueError(f"rate_per_s is {rate_per_s}; expected more than zero")
    rng = random.Random(f"arrivals:{seed}")
    times = [0.0]
    for _ in range(count - 1):
        times.append(times[-1] + rng.expovariate(1.0) / rate_per_s)
    return tuple(times[:count])


def all_at_once(count: int) -> tuple[float, ...]:
    """Let every program arrive at the start (an offline batch)."""
    return (0.0,) * count
