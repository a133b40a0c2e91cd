"""The queue by program: all calls of a program have its key, and run in order of their arrival."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator

from autellix_backend.core.call import Call, ChangeReason, LevelChange
from autellix_backend.core.queues.base import Queue
from autellix_backend.core.table import Program

LEVEL = 1


class ProgramQueue(Queue):
    """One level in order of (key of the program, arrival of the call)."""

    def __init__(self, key_of: Callable[[Program], float], numbers: Iterator[int] | None = None) -> None:
        super().__init__(numbers)
        self._key_of = key_of
        self._order: list[tuple[float, int, Call]] = []

    def __iter__(self) -> Iterator[Call]:
        """Walk the calls from the smallest key on."""
        return (call for _, _, call in self._order)

    def insert(self, call: Call, program: Program) -> None:
        """Queue the call behind all others of its program."""
        call.level = LEVEL
        call.seq = next(self._numbers)
        call.quantum_s = math.inf
        call.is_quantum_binding = False
        self._place(call, program)

    def remove(self, call: Call) -> None:
        """Remove the call, whose key must not have changed since its last placement."""
        del self._order[bisect_left(self._order, (call.key, call.seq))]

    def promote(self, call: Call) -> None:
        """Do nothing: the first program cannot starve, and the others come up to it."""

    def on_quantum_used(self, call: Call, program: Program) -> LevelChange:
        """Give the call the present key of its program."""
        self.remove(call)
        self._place(call, program)
        return LevelChange(call_id=call.call_id, old=LEVEL, new=LEVEL, reason=ChangeReason.RESIZING)

    def level_sizes(self) -> tuple[int, ...]:
        """Return the number of calls."""
        return (len(self._order),)

    def check(self) -> None:
        """Assert the invariants of the queue."""
        keys = [(key, seq) for key, seq, _ in self._order]
        assert keys == sorted(keys), keys
        for key, seq, call in self._order:
            assert (call.key, call.seq, call.level) == (key, seq, LEVEL), call

    def _place(self, call: Call, program: Program) -> None:
        call.key = self._key_of(program)
        insort(self._order, (call.key, call.seq, call))
