"""Round robin over calls.

Rule: calls take turns; one that has used up its quantum, and has written for as long as it read since it got
its slot, goes to the end of the queue.
Formula: p(c) = the time of its last turn; the quantum is the first level's.
When to choose it: as the baseline that shares the engine equally, knowing neither calls nor programs.
Cost: every call is preempted many times, and all of them finish late together.
"""

from __future__ import annotations

from typing import ClassVar

from autellix_backend.core.policies.base import Order
from autellix_backend.core.policies.fcfs import Fcfs

__all__ = ["RoundRobin"]


class RoundRobin(Fcfs):
    """Let all calls take turns."""

    name: ClassVar[str] = "round_robin"
    order: ClassVar[Order] = Order.ROTATION
