"""Round robin over calls.

Rule: calls rotate; one that has used up its quantum, and has decoded for as long as it prefilled since it got
its slot, goes to the end of the queue.
Formula: p(c) = the time of its last rotation; the quantum is that of the first level.
When to choose it: as the baseline that shares the engine equally, knowing neither calls nor programs.
Cost: every call is preempted many times, and all of them finish late together.
"""

from __future__ import annotations

from typing import ClassVar

from autellix_backend.core.policies.base import QueueInputs
from autellix_backend.core.policies.mlfq import Mlfq
from autellix_backend.core.queues.base import Queue
from autellix_backend.core.queues.levels import RotationQueue


class Rotation(Mlfq):
    """Rotate over all calls."""

    name: ClassVar[str] = "round_robin"
    rule: ClassVar[str] = "calls take turns of one quantum"
    has_levels: ClassVar[bool] = False

    def make_queue(self, inputs: QueueInputs) -> Queue:
        """Return a queue that rotates."""
        return RotationQueue(inputs.config.first_quantum_s, inputs.numbers)
