"""First come, first served.

Rule: calls run in order of arrival and keep their slot until they finish.
Formula: p(c) = 0 for every call; one level, so there is nothing to demote or promote.
When to choose it: as the baseline, or when every program is one call of similar size.
Cost: a long call blocks short ones, and a long program blocks short ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from autellix_backend.core.policies.mlfq import Mlfq
from autellix_backend.core.queues.base import Queue
from autellix_backend.core.queues.levels import LevelQueue

if TYPE_CHECKING:
    from autellix_backend.core.boost import ProgramBoost
    from autellix_backend.core.config import SchedulerConfig

__all__ = ["Fcfs"]


class Fcfs(Mlfq):
    """Serve calls in order of arrival, blind to programs: feedback queues with a single level."""

    name: ClassVar[str] = "fcfs"
    rule: ClassVar[str] = "calls run in order of arrival"
    reorders: ClassVar[bool] = False
    has_levels: ClassVar[bool] = False

    def make_queue(self, config: SchedulerConfig, numbers: Iterator[int], boost: ProgramBoost) -> Queue:  # noqa: ARG002
        """Return a queue of one level."""
        return LevelQueue((), numbers=numbers)
