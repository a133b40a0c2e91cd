"""First come, first served.

Rule: calls run in order of arrival and keep their slot until they finish.
Formula: p(c) = 0 for every call; one level, so there is nothing to demote or promote.
When to choose it: as the baseline, or when every program is one call of similar size.
Cost: a long call blocks short ones, and a long program blocks short ones.
"""

from __future__ import annotations

from typing import ClassVar

from autellix_backend.core.policies.base import QueueInputs
from autellix_backend.core.policies.mlfq import Mlfq
from autellix_backend.core.queues.base import Queue
from autellix_backend.core.queues.levels import LevelQueue


class Fcfs(Mlfq):
    """Serve calls in order of arrival, blind to programs: feedback queues with a single level."""

    name: ClassVar[str] = "fcfs"
    rule: ClassVar[str] = "calls run in order of arrival"
    reorders: ClassVar[bool] = False
    has_levels: ClassVar[bool] = False
    acts_on_service: ClassVar[bool] = False

    def make_queue(self, inputs: QueueInputs) -> Queue:
        """Return a queue of one level."""
        return LevelQueue((), numbers=inputs.numbers)
