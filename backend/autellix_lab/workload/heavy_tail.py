"""Counts and lengths with heavy tails: a capped log-normal with a given mean."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import cache, cached_property
from statistics import NormalDist


# Without slots: a cached property needs the instance's dictionary.
@dataclass(frozen=True)
class HeavyTail:
    """A log-normal number of at least one: its mean after capping, its largest value, its spread."""

    mean: float
    maximum: int
    sigma: float
    """Standard deviation of the number's logarithm."""

    def draw(self, rng: random.Random) -> int:
        """Return one number from 1 to the maximum."""
        value = round(math.exp(self.mu + self.sigma * rng.gauss()))
        if value < 1:
            return 1
        return value if value < self.maximum else self.maximum

    @cached_property
    def mu(self) -> float:
        """The logarithm's mean that makes the capped mean right."""
        return _mu(self.mean, self.maximum, self.sigma)

    def scaled(self, factor: float) -> HeavyTail:
        """Return the same shape with mean and maximum multiplied."""
        return HeavyTail(self.mean * factor, max(1, round(self.maximum * factor)), self.sigma)


@cache
def _mu(mean: float, maximum: int, sigma: float) -> float:
    """Solve for the log-normal's location whose mean, with values above the maximum cut to it, is `mean`."""
    low, high = math.log(mean) - sigma**2, math.log(maximum)
    for _ in range(60):
        middle = (low + high) / 2
        if _capped_mean(middle, sigma, maximum) < mean:
            low = middle
        else:
            high = middle
    return low


def _capped_mean(mu: float, sigma: float, maximum: int) -> float:
    normal = NormalDist()
    cut = (math.log(maximum) - mu) / sigma
    return math.exp(mu + sigma**2 / 2) * normal.cdf(cut - sigma) + maximum * (1 - normal.cdf(cut))
