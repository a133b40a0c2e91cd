"""The K queues: which service belongs to which level, each level's quantum, and the calls in order."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import count, pairwise

from autellix_backend.core.call import Call

__all__ = ["Levels"]


class Levels:
    """Levels 1..K over the half-open service ranges [lo, hi); calls queue first come, first served in each.

    The order of two calls is that of (level, seq), where seq grows with every append on the machine.
    """

    def __init__(
        self,
        bounds: Sequence[float],
        quanta: Sequence[float] | None = None,
        numbers: Iterator[int] | None = None,
    ) -> None:
        self._bounds = tuple(bounds)
        edges = (0.0, *self._bounds, math.inf)
        self._quanta = tuple(quanta) if quanta is not None else tuple(hi - lo for lo, hi in pairwise(edges))
        # A plain dict keeps holes where calls left, and a walk from its head would visit them all.
        self._queues: tuple[OrderedDict[str, Call], ...] = tuple(OrderedDict() for _ in self._quanta)
        self._numbers = count() if numbers is None else numbers

    def __len__(self) -> int:
        return len(self._queues)

    def __iter__(self) -> Iterator[Call]:
        """Walk Q1..QK, first come, first served in each (Alg. 1, lines 15 and 33)."""
        for queue in self._queues:
            yield from queue.values()

    def level_of(self, service_s: float) -> int:
        """Return the level whose range holds this service."""
        return bisect_right(self._bounds, service_s) + 1  # Alg. 1, line 12

    def append(self, call: Call, level: int) -> None:
        """Put the call at the end of a level, with that level's full quantum."""
        call.level = level
        call.seq = next(self._numbers)
        self._queues[level - 1][call.call_id] = call  # Alg. 1, line 13
        call.quantum_s = self._quanta[level - 1]

    def remove(self, call: Call) -> None:
        """Take the call out of its level."""
        del self._queues[call.level - 1][call.call_id]

    def move(self, call: Call, level: int) -> None:
        """Take the call to the end of another level."""
        self.remove(call)
        self.append(call, level)

    def sizes(self) -> tuple[int, ...]:
        """Return the number of calls in each level, running ones included."""
        return tuple(len(queue) for queue in self._queues)

    def check(self) -> None:
        """Assert the invariants of the queues."""
        seen: set[str] = set()
        for level, queue in enumerate(self._queues, start=1):
            for call_id, call in queue.items():
                assert (call.call_id, call.level) == (call_id, level), call
                assert call_id not in seen, call
                seen.add(call_id)
            seqs = [call.seq for call in queue.values()]
            assert seqs == sorted(set(seqs)), seqs
