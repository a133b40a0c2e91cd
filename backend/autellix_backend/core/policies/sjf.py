"""Shortest job first, over single calls.

Rule: of the waiting calls the one of least expected size runs next; a running call keeps its slot.
Formula: p(c) = prompt tokens + 2 x output tokens, in nominal seconds; a live engine does not know the output
and takes the request's `max_tokens`, a simulator takes the true length.
When to choose it: as a baseline, or for independent calls whose `max_tokens` is honest.
Cost: it is blind to programs, and a wrong size cannot be corrected while the call runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from autellix_backend.core.policies.mlfq import Mlfq
from autellix_backend.core.queues.base import Queue
from autellix_backend.core.queues.keyed import KeyedQueue

if TYPE_CHECKING:
    from autellix_backend.core.config import SchedulerConfig

__all__ = ["Sjf"]


class Sjf(Mlfq):
    """Favour calls that will be short, blind to programs."""

    name: ClassVar[str] = "sjf"
    rule: ClassVar[str] = "the call with the least expected work goes first"
    has_levels: ClassVar[bool] = False
    holds_slots: ClassVar[bool] = True

    def make_queue(self, config: SchedulerConfig, numbers: Iterator[int]) -> Queue:
        """Return a queue ordered by the size of the call."""
        return KeyedQueue(self, config.first_quantum_s, numbers)
