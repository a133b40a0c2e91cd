"""Boosted order of programs.

Rule: the program that arrived first goes first, and little attained work counts as an earlier arrival.
Formula: see `core.boost`; its strength follows the measured response time and the spread of program sizes.
When to choose it: always; it shortens the mean like attained service does, and keeps the tail.
Cost: token latency of short programs is higher than under `plas`, which lets them preempt long ones.
"""

from __future__ import annotations

from typing import ClassVar

from autellix_backend.core.boost import ProgramBoost
from autellix_backend.core.place import Place
from autellix_backend.core.policies.base import QueueInputs
from autellix_backend.core.policies.plas import Plas
from autellix_backend.core.queues.base import Queue
from autellix_backend.core.queues.programs import ProgramQueue
from autellix_backend.core.table import Program


class Boost(Plas):
    """Serve programs in order of arrival, those with little work as if they had come earlier."""

    name: ClassVar[str] = "boost"
    rule: ClassVar[str] = (
        "programs run in order of arrival, and those with little work so far get a head start"
    )
    has_levels: ClassVar[bool] = False
    preempts: ClassVar[bool] = False
    promotes: ClassVar[bool] = False
    boosts: ClassVar[bool] = True
    acts_on_service: ClassVar[bool] = False

    def make_queue(self, inputs: QueueInputs) -> Queue:
        """Return a queue in the order of the programs' keys."""
        return ProgramQueue(inputs.boost.place, inputs.numbers, inputs.boost)

    def place(self, program: Program, boost: ProgramBoost) -> Place:
        """Return the program's arrival and the class of its work."""
        return boost.place(program)
