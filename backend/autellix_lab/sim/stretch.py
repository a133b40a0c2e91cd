"""Steps of a simulated engine that do the same work, taken as one."""

from __future__ import annotations

import math
from dataclasses import dataclass

EPSILON = 1e-9
"""Times that differ by less are equal: sums of step times are rounded."""


@dataclass(slots=True)
class Stretch:
    """One or more steps of the same calls; an arrival may shorten it."""

    start_s: float
    step_s: float
    """Duration of the first step."""
    steps: int
    growth_s: float = 0.0
    """How much longer each step takes than the one before, as contexts grow."""
    delay_s: float = 0.0
    """Swaps and loads that the first step waits for."""

    @property
    def steps_s(self) -> float:
        """Duration of all steps, without the delay."""
        return self.steps * self.step_s + self.growth_s * (self.steps * (self.steps - 1) / 2)

    @property
    def mean_step_s(self) -> float:
        """Mean duration of a step, without the delay."""
        return self.step_s + self.growth_s * (self.steps - 1) / 2

    @property
    def end_s(self) -> float:
        """When the last step ends."""
        return self.start_s + self.delay_s + self.steps_s

    def steps_by(self, now: float) -> int:
        """Return the number of steps up to the end of the current one; the first always completes."""
        passed = steps_within(now - self.start_s - self.delay_s, self.step_s, self.growth_s)
        # Rounding must not add a step to a stretch that is over.
        return max(1, math.ceil(passed - EPSILON))


def steps_within(time_s: float, step_s: float, growth_s: float) -> float:
    """Return how many steps take `time_s`, not rounded, if each takes `growth_s` longer than the last."""
    if not growth_s:
        return time_s / step_s
    # The root of n * step_s + growth_s * n * (n - 1) / 2 = time_s, in the form that cancels no digits.
    middle_s = step_s - growth_s / 2
    return 2 * time_s / (middle_s + math.sqrt(middle_s * middle_s + 2 * growth_s * max(0.0, time_s)))
