"""Anti-starvation (Alg. 1, lines 24-30): the ratio test, and the calls that it may concern at a given time.

Testing every call at every tick would cost as much as there are waiting calls. But a call's ratio

    (W_p + W_c) / (T_p + T_c)

rises in two ways only: with time while the call waits, and when its program's entry changes. It reaches beta
when the program's surplus W_p - beta * T_p reaches the call's own lack beta * T_c - W_c. The surplus is
common to all calls of a program. The lack changes with the call's own events alone, but for the wait of a
waiting call, which grows with time at the same rate for all. So each program keeps its calls by their lack,
and has one deadline, the time at which its first call would starve if nothing but time went on: a change of
its entry costs as much with thousands of calls as with one. A heap yields the programs whose deadline has
passed. Two rules keep it exact:

1. A deadline in the heap is never later than the true one. Every event that makes a ratio rise calls `watch`
   (a preemption, a move to a lower level, the first service of a call) or `review` (a change of the table)
   again. What makes it fall is ignored until the deadline is popped.
2. The ratio test itself decides when a deadline is popped; the deadline alone promotes no call.

A call without service has no ratio and no deadline. Most watched calls have some: below the first level they
either inherited it or used up a quantum. Under a policy of sizes the expected size counts as service too:
otherwise a large program that never ran would wait forever.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import chain, count

from autellix_backend.core.call import Call
from autellix_backend.core.table import Program

# Deadlines are set early by this many units in the last place of their largest term, so that rounding cannot
# make one late (rule 1); the test at the pop makes up for it (rule 2).
_SLACK_ULPS = 16
# Below this size the heap is not worth rebuilding.
_MIN_HEAP = 64


def is_starving(wait_s: float, service_s: float, beta: float) -> bool:
    """Return whether total waiting over total service has reached beta; without service it never has."""
    return service_s > 0 and wait_s / service_s >= beta  # Alg. 1, line 26


def totals(call: Call, program: Program, now: float) -> tuple[float, float]:
    """Return the service and the waiting (s) of a call and its program together."""
    wait_s = program.wait_s + call.unpaid_wait_at(now)  # Alg. 1, line 24
    service_s = program.service_s + call.unpaid_service_s + call.size_s  # Alg. 1, line 25
    return service_s, wait_s


_Lack = tuple[float, int, Call]


_Kind = tuple[bool, bool]
"""Whether a call waited when it was last watched, and whether it had service of its own then."""


def _no_lacks() -> dict[_Kind, list[_Lack]]:
    return {(waits, served): [] for waits in (True, False) for served in (True, False)}


@dataclass(slots=True, eq=False)
class _Watched:
    """The watched calls of one program, by their lack (s); of those that wait, by that at time zero."""

    program: Program
    heaps: dict[_Kind, list[_Lack]] = field(default_factory=_no_lacks)
    entries: dict[str, _Lack] = field(default_factory=dict)
    """The valid entry of each call; an entry in a heap that is not it is void."""
    noted: tuple[float, int] | None = None
    """Its valid deadline in the heap of all programs."""

    def may_starve(self) -> Iterator[tuple[bool, list[_Lack]]]:
        """Walk the heaps of calls that have service, or whose program has; first, whether they wait."""
        for (is_waiting, has_service), heap in self.heaps.items():
            if heap and (has_service or self.program.service_s > 0):
                yield is_waiting, heap

    def first(self, heap: list[_Lack]) -> float:
        """Return the least lack in a heap, without its void entries."""
        while heap and self.entries.get(heap[0][-1].call_id) is not heap[0]:
            heappop(heap)
        return heap[0][0] if heap else math.inf

    def push(self, call: Call, lack: _Lack) -> None:
        """Set the lack of a call."""
        self.entries[call.call_id] = lack
        heappush(self.heaps[call.is_waiting, _own_service_s(call) > 0], lack)
        if sum(map(len, self.heaps.values())) > max(_MIN_HEAP, 2 * len(self.entries)):
            for heap in self.heaps.values():
                heap[:] = [each for each in heap if self.entries.get(each[-1].call_id) is each]
                heapify(heap)


class StarvationWatch:
    """The calls outside the first level, by the time at which the first of each program may be starving."""

    def __init__(self, beta: float) -> None:
        self._beta = beta
        self._programs: dict[str, _Watched] = {}
        self._heap: list[tuple[float, int, _Watched]] = []
        self._numbers = count()

    @property
    def next_deadline_s(self) -> float:
        """The earliest deadline, or that of a call no longer watched; inf if there is none."""
        return self._heap[0][0] if self._heap else math.inf

    def is_starving(self, call: Call, program: Program, now: float) -> bool:
        """Apply the ratio test to a call."""
        service_s, wait_s = totals(call, program, now)
        return is_starving(wait_s, service_s, self._beta)

    def watch(self, call: Call, program: Program, now: float) -> None:
        """Watch a call whose own waiting, service or level has changed."""
        if call.level == 1 or self._beta == math.inf:
            return
        watched = self._programs.get(call.program_id)
        if watched is None:
            watched = self._programs[call.program_id] = _Watched(program)
        watched.program = program
        watched.push(call, (self._lack(call), next(self._numbers), call))
        self._note(watched, now)

    def review(self, program: Program, now: float) -> None:
        """Note the time at which a call may starve of a program whose entry has changed."""
        watched = self._programs.get(program.program_id)
        if watched is not None:
            watched.program = program
            self._note(watched, now)

    def forget(self, call: Call) -> None:
        """Stop watching a call that left or is in the first level; it need not be watched."""
        watched = self._programs.get(call.program_id)
        if watched is not None:
            watched.entries.pop(call.call_id, None)
            if not watched.entries:
                watched.noted = None
                del self._programs[call.program_id]

    def pop_due(self, now: float) -> list[Call]:
        """Return the calls whose deadline has passed, and stop watching them."""
        due: list[Call] = []
        while self._heap and self._heap[0][0] <= now:
            *noted, watched = heappop(self._heap)
            if watched.noted == tuple(noted):
                watched.noted = None
                due += self._take_due(watched, now)
                self._note(watched, now)
        return due

    def check(self) -> None:
        """Assert the invariants of the watch."""
        noted = {(deadline_s, number): watched for deadline_s, number, watched in self._heap}
        for program_id, watched in self._programs.items():
            assert watched.entries, program_id
            assert watched.noted is None or noted[watched.noted] is watched, program_id
            held = list(chain.from_iterable(watched.heaps.values()))
            for call_id, lack in watched.entries.items():
                assert lack in held, call_id
                assert (lack[-1].call_id, lack[-1].program_id) == (call_id, program_id)
                assert lack[-1].level > 1, call_id

    def _lack(self, call: Call) -> float:
        """Return beta * T_c - W_c; of a waiting call, that at time zero."""
        service_s = self._beta * _own_service_s(call)
        since_s = call.waiting_since_s if call.is_waiting else 0.0
        largest_s = max(service_s, abs(since_s), call.wait_s, call.wait_mark_s)
        return service_s - (call.wait_s - call.wait_mark_s) + since_s - _slack_s(largest_s)

    def _surplus_s(self, program: Program, now: float) -> float:
        """Return W_p - beta * T_p."""
        service_s = self._beta * program.service_s
        return program.wait_s - service_s + _slack_s(max(abs(now), service_s, program.wait_s))

    def _take_due(self, watched: _Watched, now: float) -> Iterator[Call]:
        surplus_s = self._surplus_s(watched.program, now)
        for is_waiting, heap in watched.may_starve():
            while watched.first(heap) - surplus_s <= (now if is_waiting else 0.0):
                call = heappop(heap)[-1]
                self.forget(call)
                yield call

    def _note(self, watched: _Watched, now: float) -> None:
        """Note the time at which the first call may starve, if that is earlier than the time noted."""
        surplus_s = self._surplus_s(watched.program, now)
        deadline_s = math.inf
        for is_waiting, heap in watched.may_starve():
            left_s = watched.first(heap) - surplus_s
            if is_waiting:
                deadline_s = min(deadline_s, max(now, left_s))
            elif left_s <= 0.0:
                deadline_s = now
        if deadline_s < (math.inf if watched.noted is None else watched.noted[0]):
            watched.noted = (deadline_s, next(self._numbers))
            heappush(self._heap, (*watched.noted, watched))
            if len(self._heap) > max(_MIN_HEAP, 2 * len(self._programs)):
                self._heap = [entry for entry in self._heap if entry[-1].noted == entry[:2]]
                heapify(self._heap)


def _own_service_s(call: Call) -> float:
    return call.unpaid_service_s + call.size_s


def _slack_s(largest_s: float) -> float:
    return _SLACK_ULPS * math.ulp(largest_s)
