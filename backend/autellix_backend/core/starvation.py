"""Anti-starvation (Alg. 1, lines 24-30): the ratio test, and the calls that it may concern at a given time.

Testing every call at every tick would cost as much as there are waiting calls. But a call's ratio

    (W_p + W_c) / (T_p + T_c)

rises in two ways only: with time while the call waits, and when its program's entry changes. So each call
has a deadline, the time at which it would reach beta if nothing but time went on, and a heap yields the
calls whose deadline has passed. Two rules keep it exact:

1. A deadline in the heap is never later than the true one. Every event that makes a ratio rise (a
   preemption, a change of the table, a move to a lower level) calls `watch` again. What makes it fall is
   ignored until the deadline is popped.
2. The ratio test itself decides when a deadline is popped; the deadline alone promotes no call.

A watched call has service: below the first level it either inherited some or used up a quantum. Under a
policy of sizes the expected size counts as service too: otherwise a large program that never ran would wait
forever.
"""

from __future__ import annotations

import heapq
import math

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


class StarvationWatch:
    """The calls outside the first level, by the time at which each may be starving."""

    def __init__(self, beta: float) -> None:
        self._beta = beta
        self._heap: list[tuple[float, int, Call]] = []
        # The valid entry of each watched call; an entry in the heap that is not it is void.
        self._entries: dict[str, tuple[float, int]] = {}
        self._next_number = 0

    @property
    def next_deadline_s(self) -> float:
        """The earliest deadline, or that of a call no longer watched; inf if there is none."""
        return self._heap[0][0] if self._heap else math.inf

    def is_starving(self, call: Call, program: Program, now: float) -> bool:
        """Apply the ratio test to a call."""
        service_s, wait_s = totals(call, program, now)
        return is_starving(wait_s, service_s, self._beta)

    def watch(self, call: Call, program: Program, now: float) -> None:
        """Note the time at which the call may starve, if that is earlier than the time noted."""
        if call.level == 1 or self._beta == math.inf:
            return
        deadline_s = self._deadline(call, program, now)
        noted = self._entries.get(call.call_id)
        if deadline_s < (math.inf if noted is None else noted[0]):
            self._push(call, deadline_s)

    def forget(self, call: Call) -> None:
        """Stop watching a call that left or is in the first level; it need not be watched."""
        self._entries.pop(call.call_id, None)

    def pop_due(self, now: float) -> list[Call]:
        """Return the calls whose deadline has passed, and stop watching them."""
        due: list[Call] = []
        while self._heap and self._heap[0][0] <= now:
            deadline_s, number, call = heapq.heappop(self._heap)
            if self._entries.get(call.call_id) == (deadline_s, number):
                del self._entries[call.call_id]
                due.append(call)
        return due

    def check(self) -> None:
        """Assert the invariants of the watch."""
        held = {(deadline_s, number): call for deadline_s, number, call in self._heap}
        for call_id, entry in self._entries.items():
            assert held[entry].call_id == call_id, call_id
            assert held[entry].level > 1, call_id

    def _deadline(self, call: Call, program: Program, now: float) -> float:
        service_s, wait_s = totals(call, program, now)
        missing_s = self._beta * service_s - wait_s
        slack_s = _SLACK_ULPS * math.ulp(
            max(abs(now), abs(call.waiting_since_s), self._beta * service_s, wait_s)
        )
        if missing_s <= slack_s:
            return now
        return math.inf if call.is_running or call.is_paused else now + missing_s - slack_s

    def _push(self, call: Call, deadline_s: float) -> None:
        self._entries[call.call_id] = (deadline_s, self._next_number)
        heapq.heappush(self._heap, (deadline_s, self._next_number, call))
        self._next_number += 1
        if len(self._heap) > max(_MIN_HEAP, 2 * len(self._entries)):
            self._drop_void()

    def _drop_void(self) -> None:
        self._heap = [entry for entry in self._heap if self._entries.get(entry[2].call_id) == entry[:2]]
        heapq.heapify(self._heap)
