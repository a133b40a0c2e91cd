"""The steps under way, and the time that each is charged."""

from __future__ import annotations

from collections import deque
from typing import Any


class StepTimes:
    """Pipelined steps overlap: each is charged from where the previous one ended."""

    def __init__(self) -> None:
        self._started: deque[tuple[Any, float]] = deque()
        self._last_end_s = 0.0

    def start(self, output: Any, now: float) -> None:
        """Add a step by its scheduler output."""
        self._started.append((output, now))

    def end(self, output: Any, now: float) -> float:
        """Remove an executed step and those before it; return its cost (s)."""
        cost_s = now - max(self._pop(output, now), self._last_end_s)
        self._last_end_s = now
        return cost_s

    def _pop(self, output: Any, default_s: float) -> float:
        while self._started:
            scheduled, started_s = self._started.popleft()
            if scheduled is output:
                return started_s
        return default_s
