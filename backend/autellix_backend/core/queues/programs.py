"""The queue by program: all calls of a program have its key, and run in order of their arrival.

Programs are ordered, not calls: a program has one place, that of its first call, however many calls it has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from heapq import heappop, heappush, heapreplace

from autellix_backend.core.call import Call, CallGroup, ChangeReason, LevelChange
from autellix_backend.core.place import NO_BOOSTS, Boosts, Place
from autellix_backend.core.queues.base import Queue
from autellix_backend.core.queues.classed import ClassedOrder
from autellix_backend.core.table import Program

LEVEL = 1


class ProgramQueue(Queue):
    """One level in order of (key of the program, arrival of the call)."""

    def __init__(
        self,
        place_of: Callable[[Program], Place],
        numbers: Iterator[int] | None = None,
        boosts: Boosts = NO_BOOSTS,
    ) -> None:
        """Create an empty queue.

        Args:
            place_of: Returns the present place of a program.
            numbers: The sequence that all queues of one machine share.
            boosts: The present boosts of classes of work.
        """
        super().__init__(numbers)
        self._place_of = place_of
        self._boosts = boosts
        self._groups: dict[str, CallGroup] = {}
        """The calls by program."""
        self._order = ClassedOrder[CallGroup](boosts)
        """The programs by key and by the number of their first call."""
        self._length = 0

    def __iter__(self) -> Iterator[Call]:
        """Walk the calls from the smallest key on; programs of one key by the arrival of each call."""
        begun: list[tuple[float, int, Call, Iterator[Call]]] = []
        for key, seq, group in self._order.keyed():
            while begun and begun[0][:2] < (key, seq):
                yield _pop(begun)
            calls = iter(group.calls.values())
            heappush(begun, (key, seq, next(calls), calls))
        while begun:
            yield _pop(begun)

    def first_of(self, program_id: str) -> Call | None:
        """Return the first call of a program."""
        group = self._groups.get(program_id)
        return None if group is None else group.first

    def insert(self, call: Call, program: Program) -> None:
        """Queue the call behind all others of its program, whose key stays."""
        call.level = LEVEL
        call.seq = next(self._numbers)
        call.quantum_s = math.inf
        call.is_quantum_binding = False
        self._length += 1
        group = self._groups.get(call.program_id)
        if group is None:
            group = self._groups[call.program_id] = CallGroup(self._place_of(program), self._boosts)
            group.calls[call.call_id] = call
            self._place(group)
        else:
            group.calls[call.call_id] = call
        call.group = group

    def remove(self, call: Call) -> None:
        """Remove a queued call; the program's place becomes that of its next one."""
        group = call.group
        assert group is not None, call
        is_first = group.first is call
        if is_first:
            self._take(group)
        del group.calls[call.call_id]
        call.group = None
        self._length -= 1
        if not group.calls:
            del self._groups[call.program_id]
        elif is_first:
            self._place(group)

    def promote(self, call: Call) -> None:
        """Do nothing: the first program cannot starve, and the others come up to it."""

    def on_quantum_used(self, call: Call, program: Program) -> LevelChange:
        """Give the call's program, and with it all its calls, its present key."""
        group = call.group
        assert group is not None, call
        self._take(group)
        group.place = self._place_of(program)
        self._place(group)
        return LevelChange(call_id=call.call_id, old=LEVEL, new=LEVEL, reason=ChangeReason.RESIZING)

    def level_sizes(self) -> tuple[int, ...]:
        """Return the number of calls."""
        return (self._length,)

    def check(self) -> None:
        """Assert the invariants of the queue."""
        self._order.check()
        assert {*self._order} == {*self._groups.values()}
        assert self._length == sum(len(group.calls) for group in self._groups.values())
        for program_id, group in self._groups.items():
            calls = list(group.calls.values())
            assert all((call.program_id, call.level) == (program_id, LEVEL) for call in calls), program_id
            assert all(call.group is group for call in calls), program_id
            assert [call.seq for call in calls] == sorted(call.seq for call in calls), program_id

    def _place(self, group: CallGroup) -> None:
        self._order.add(group.place, group.first.seq, group)

    def _take(self, group: CallGroup) -> None:
        self._order.remove(group.place, group.first.seq)


def _pop(begun: list[tuple[float, int, Call, Iterator[Call]]]) -> Call:
    """Return the next call of the programs that a walk has begun."""
    key, _, call, calls = begun[0]
    following = next(calls, None)
    if following is None:
        heappop(begun)
    else:
        heapreplace(begun, (key, following.seq, following, calls))
    return call
