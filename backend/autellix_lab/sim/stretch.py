"""Steps of a simulated engine that are all alike, taken as one."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autellix_lab.sim.writing import EPSILON

__all__ = ["Stretch"]


@dataclass(slots=True)
class Stretch:
    """One or more equal steps; an arrival may make them fewer."""

    start_s: float
    step_s: float
    steps: int
    delay_s: float = 0.0
    """Swaps that the first step waits for."""

    @property
    def end_s(self) -> float:
        """When the last step ends."""
        return self.start_s + self.delay_s + self.steps * self.step_s

    def steps_by(self, now: float) -> int:
        """Return how many steps there are up to the end of the one under way; the first cannot be undone."""
        passed = (now - self.start_s - self.delay_s) / self.step_s
        # Rounding must not add a step: a stretch that is over is over.
        return max(1, math.ceil(passed - EPSILON))
