"""Equal steps of a simulated engine, taken as one."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autellix_lab.sim.decoding import EPSILON

__all__ = ["Stretch"]


@dataclass(slots=True)
class Stretch:
    """One or more equal steps; an arrival may shorten it."""

    start_s: float
    step_s: float
    steps: int
    delay_s: float = 0.0
    """Swaps and loads that the first step waits for."""

    @property
    def end_s(self) -> float:
        """When the last step ends."""
        return self.start_s + self.delay_s + self.steps * self.step_s

    def steps_by(self, now: float) -> int:
        """Return the number of steps up to the end of the current one; the first always completes."""
        passed = (now - self.start_s - self.delay_s) / self.step_s
        # Rounding must not add a step to a stretch that is over.
        return max(1, math.ceil(passed - EPSILON))
