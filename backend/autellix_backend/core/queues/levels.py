"""Queues by level: the K levels of Algorithm 1, and the single level of round robin."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from autellix_backend.core.call import Call, ChangeReason, LevelChange
from autellix_backend.core.queues.base import Queue
from autellix_backend.core.table import Program


class LevelQueue(Queue):
    """Levels 1..K over the half-open service ranges [lo, hi), first come, first served in each.

    A call that has used up its quantum sinks by one level, except from the last.
    """

    def __init__(
        self,
        bounds: Sequence[float],
        quanta: Sequence[float] | None = None,
        numbers: Iterator[int] | None = None,
        *,
        demotes: bool = True,
    ) -> None:
        super().__init__(numbers)
        self._bounds = tuple(bounds)
        edges = (0.0, *self._bounds, math.inf)
        self._quanta = tuple(quanta) if quanta is not None else tuple(hi - lo for lo, hi in pairwise(edges))
        self._last_binding_level = len(self._quanta) - 1 if demotes else 0
        # A plain dict keeps holes where calls left, and a walk from its head would visit them all.
        self._levels: tuple[OrderedDict[str, Call], ...] = tuple(OrderedDict() for _ in self._quanta)

    def __iter__(self) -> Iterator[Call]:
        """Walk Q1..QK, first come, first served in each (Alg. 1, lines 15 and 33)."""
        for calls in self._levels:
            yield from calls.values()

    def level_of(self, service_s: float) -> int:
        """Return the level whose range holds this service."""
        return bisect_right(self._bounds, service_s) + 1  # Alg. 1, line 12

    def insert(self, call: Call, program: Program) -> None:  # noqa: ARG002
        """Append the call to the level of its inherited service."""
        self._append(call, self.level_of(call.inherited_service_s))

    def remove(self, call: Call) -> None:
        """Remove the call from its level."""
        del self._levels[call.level - 1][call.call_id]

    def promote(self, call: Call) -> None:
        """Move the call to the end of level 1, with a full quantum."""
        self._move(call, 1)

    def on_quantum_used(self, call: Call, program: Program) -> LevelChange:  # noqa: ARG002
        """Demote the call by one level (Alg. 1, lines 20-22)."""
        old = call.level
        self._move(call, old + 1)
        call.demotions += 1
        return LevelChange(call_id=call.call_id, old=old, new=call.level, reason=ChangeReason.DEMOTION)

    def is_deferred(self, call: Call) -> bool:
        """Whether a promoted call has yet to decode for as long as it prefilled since it got its slot."""
        return bool(call.promotions) and call.has_prefill_debt

    def level_sizes(self) -> tuple[int, ...]:
        """Return the number of calls in each level, running ones included."""
        return tuple(map(len, self._levels))

    def check(self) -> None:
        """Assert the invariants of the queue."""
        seen: set[str] = set()
        for level, calls in enumerate(self._levels, start=1):
            for call_id, call in calls.items():
                assert (call.call_id, call.level) == (call_id, level), call
                assert call_id not in seen, call
                seen.add(call_id)
            seqs = [call.seq for call in calls.values()]
            assert seqs == sorted(set(seqs)), seqs

    def _move(self, call: Call, level: int) -> None:
        self.remove(call)
        self._append(call, level)

    def _append(self, call: Call, level: int) -> None:
        call.level = level
        call.seq = next(self._numbers)
        call.quantum_s = self._quanta[level - 1]
        call.is_quantum_binding = level <= self._last_binding_level
        self._levels[level - 1][call.call_id] = call  # Alg. 1, line 13


class RotationQueue(LevelQueue):
    """One level; a call that has used up its quantum goes to its end."""

    def __init__(self, quantum_s: float, numbers: Iterator[int] | None = None) -> None:
        super().__init__((), (quantum_s,), numbers)
        self._last_binding_level = 1

    def on_quantum_used(self, call: Call, program: Program) -> LevelChange:  # noqa: ARG002
        """Move the call to the end of the queue."""
        self._move(call, 1)
        return LevelChange(call_id=call.call_id, old=1, new=1, reason=ChangeReason.ROTATION)

    def is_deferred(self, call: Call) -> bool:
        """Whether the call has yet to decode for as long as it prefilled since it got its slot."""
        return call.has_prefill_debt
