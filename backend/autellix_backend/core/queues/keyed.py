"""The queue by key, for policies that order calls by their expected size: the smallest goes first."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator

from autellix_backend.core.call import Call, ChangeReason, LevelChange
from autellix_backend.core.queues.base import Queue
from autellix_backend.core.table import Program

FRONT, KEYED = 1, 2
_HELD_BELOW = 1 << 48
"""Subtracted from the sequence numbers of held calls, so that they precede all others."""
_STEP_SHARE = 0.25
"""A call's size is computed again each time the call has received this share of it."""


class KeyedQueue(Queue):
    """Two levels: the front, first come, first served, and behind it all others by (key, seq).

    The front holds the promoted calls and, before these, the running calls of a policy that holds slots.
    """

    def __init__(
        self,
        size: Callable[[Call, Program], float],
        least_quantum_s: float = 0.0,
        numbers: Iterator[int] | None = None,
        *,
        holds_slots: bool = False,
        changes_sizes: bool = False,
    ) -> None:
        """Create an empty queue.

        Args:
            size: Returns the service (s) that a call is still expected to need.
            least_quantum_s: The least quantum (s) of a call.
            numbers: The sequence that all queues of one machine share.
            holds_slots: Whether running calls go before all others.
            changes_sizes: Whether a call's size changes as it runs.
        """
        super().__init__(numbers)
        self._size = size
        self._holds_slots = holds_slots
        self._changes_sizes = changes_sizes
        self._least_quantum_s = least_quantum_s
        self._held: OrderedDict[str, Call] = OrderedDict()
        self._promoted: OrderedDict[str, Call] = OrderedDict()
        self._keyed: list[tuple[float, int, Call]] = []

    def __iter__(self) -> Iterator[Call]:
        """Walk the front, then the others from the smallest key on."""
        yield from self._held.values()
        yield from self._promoted.values()
        for _, _, call in self._keyed:
            yield call

    def insert(self, call: Call, program: Program) -> None:
        """Queue the call behind all others of its key."""
        call.seq = next(self._numbers)
        self._place(call, program)

    def remove(self, call: Call) -> None:
        """Remove the call, whose key must not have changed since its last placement."""
        if call.level == FRONT:
            del (self._promoted if call.call_id in self._promoted else self._held)[call.call_id]
        else:
            del self._keyed[bisect_left(self._keyed, (call.key, call.seq))]

    def promote(self, call: Call) -> None:
        """Move the call to the end of the front, where neither key nor quantum counts."""
        self._to_front(call, self._promoted, next(self._numbers))

    def on_started(self, call: Call) -> None:
        """Put a running call before all that do not run, where the policy holds slots."""
        if self._holds_slots and call.call_id not in self._held:
            self._to_front(call, self._held, next(self._numbers) - _HELD_BELOW)

    def on_quantum_used(self, call: Call, program: Program) -> LevelChange:
        """Compute the call's size, key and quantum again.

        Among equal keys the sequence number stays: calls of one program keep the order of their arrival, in
        which later ones find the prefixes of earlier ones in the cache.
        """
        level = call.level
        self.remove(call)
        self._place(call, program)
        return LevelChange(call_id=call.call_id, old=level, new=call.level, reason=ChangeReason.RESIZING)

    def level_sizes(self) -> tuple[int, ...]:
        """Return the number of calls in each level, running ones included."""
        return (len(self._held) + len(self._promoted), len(self._keyed))

    def check(self) -> None:
        """Assert the invariants of the queue."""
        front = [*self._held.values(), *self._promoted.values()]
        assert all((call.level, call.key, call.size_s) == (FRONT, 0, 0) for call in front)
        assert [call.seq for call in front] == sorted(call.seq for call in front), front
        keys = [(key, seq) for key, seq, _ in self._keyed]
        assert keys == sorted(keys), keys
        for key, seq, call in self._keyed:
            assert (call.key, call.seq, call.level) == (key, seq, KEYED), call
            assert call.call_id not in self._promoted, call
            assert call.call_id not in self._held, call

    def _place(self, call: Call, program: Program) -> None:
        call.level = KEYED
        call.own_key = call.size_s = self._size(call, program)
        call.quantum_s = max(self._least_quantum_s, _STEP_SHARE * call.size_s)
        call.is_quantum_binding = self._changes_sizes
        insort(self._keyed, (call.key, call.seq, call))

    def _to_front(self, call: Call, calls: OrderedDict[str, Call], seq: int) -> None:
        self.remove(call)
        call.level = FRONT
        call.size_s = call.own_key = 0.0
        call.quantum_s = math.inf
        call.is_quantum_binding = False
        call.seq = seq
        calls[call.call_id] = call
