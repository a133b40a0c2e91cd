"""When the calls that write will be looked at next, so that nobody has to look at them before."""

from __future__ import annotations

import heapq
import math

from autellix_lab.sim.calls import EngineCall

__all__ = ["Agenda"]


class Agenda:
    """Calls by the point at which something is foreseen to happen to them, such as their last step.

    What was foreseen before a call's latest epoch no longer counts: it left its slot, or writes anew.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, EngineCall]] = []
        self._numbers = 0

    def add(self, at: float, call: EngineCall) -> None:
        """Foresee something for a call."""
        self._numbers += 1
        heapq.heappush(self._heap, (at, self._numbers, call.epoch, call))

    @property
    def next_at(self) -> float:
        """The first point at which something is foreseen; infinity if nothing is."""
        while self._heap and self._heap[0][2] != self._heap[0][3].epoch:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf

    def due(self, until: float) -> list[EngineCall]:
        """Take out the calls whose point has come."""
        due: list[EngineCall] = []
        while self._heap and self._heap[0][0] <= until:
            _, _, epoch, call = heapq.heappop(self._heap)
            if epoch == call.epoch:
                due.append(call)
        return due
