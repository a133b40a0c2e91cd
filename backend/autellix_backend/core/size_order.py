"""The queue of policies that order by expected size: promoted calls first, then the smallest."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator
from itertools import count

from autellix_backend.core.call import Call

__all__ = ["SizeOrder"]

FRONT, SIZED = 1, 2
_HELD_BELOW = 1 << 48
"""What puts the numbers of held calls below all others."""
_STEP_SHARE = 0.25
"""A call's place is looked at again each time it has received this share of its size."""


class SizeOrder:
    """Two levels: the front, first come, first served, and behind it all others by (size_s, seq).

    Calls that are held go before the rest of the front, in the order in which they were.
    """

    def __init__(self, least_quantum_s: float, numbers: Iterator[int] | None = None) -> None:
        self._least_quantum_s = least_quantum_s
        self._held: OrderedDict[str, Call] = OrderedDict()
        self._front: OrderedDict[str, Call] = OrderedDict()
        self._sized: list[tuple[float, int, Call]] = []
        self._numbers = count() if numbers is None else numbers

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[Call]:
        """Walk the front, then the others from the smallest on."""
        yield from self._held.values()
        yield from self._front.values()
        for _, _, call in self._sized:
            yield call

    def level_of(self, service_s: float) -> int:  # noqa: ARG002 - attained service does not count here
        """Return the level of a new call."""
        return SIZED

    def append(self, call: Call, level: int) -> None:
        """Put the call at the end of the front, where no size counts, or behind the others of its size."""
        call.seq = next(self._numbers)
        self._insert(call, level)

    def _insert(self, call: Call, level: int) -> None:
        call.level = level
        if level == FRONT:
            self._front[call.call_id] = call
            call.size_s = 0.0
            call.quantum_s = math.inf
        else:
            insort(self._sized, (call.size_s, call.seq, call))
            call.quantum_s = max(self._least_quantum_s, _STEP_SHARE * call.size_s)

    def remove(self, call: Call) -> None:
        """Take the call out; its size must be that of its last append or resize."""
        if call.level == FRONT:
            del (self._front if call.call_id in self._front else self._held)[call.call_id]
        else:
            del self._sized[bisect_left(self._sized, (call.size_s, call.seq))]

    def move(self, call: Call, level: int) -> None:
        """Take the call to the end of another level."""
        self.remove(call)
        self.append(call, level)

    def hold(self, call: Call) -> None:
        """Take the call before all that are not held; one that is held stays where it is."""
        if call.call_id in self._held:
            return
        self.remove(call)
        call.level = FRONT
        call.size_s = 0.0
        call.quantum_s = math.inf
        call.seq = next(self._numbers) - _HELD_BELOW
        self._held[call.call_id] = call

    def resize(self, call: Call, size_s: float) -> None:
        """Give the call another size, and the place and the quantum that go with it.

        Among equals it stays where it was: calls of one program keep the order in which they were made, for
        later ones find the prefixes of earlier ones in the cache.
        """
        level = call.level
        self.remove(call)
        call.size_s = size_s
        self._insert(call, level)

    def sizes(self) -> tuple[int, ...]:
        """Return the number of calls in each level, running ones included."""
        return (len(self._held) + len(self._front), len(self._sized))

    def check(self) -> None:
        """Assert the invariants of the queue."""
        front = [*self._held.values(), *self._front.values()]
        assert all(call.level == FRONT and call.size_s == 0 for call in front)
        assert [call.seq for call in front] == sorted(call.seq for call in front), front
        keys = [(size_s, seq) for size_s, seq, _ in self._sized]
        assert keys == sorted(keys), keys
        for size_s, seq, call in self._sized:
            assert (call.size_s, call.seq, call.level) == (size_s, seq, SIZED), call
            assert call.call_id not in self._front, call
            assert call.call_id not in self._held, call
