"""Multi-level feedback queues over single calls.

Rule: every call starts in the first level and sinks as it uses up its quanta.
Formula: p(c) = 0 at arrival; afterwards the call's own attained service.
When to choose it: as the baseline that knows calls but no programs.
Cost: each call of a long program outranks the work of programs that began earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from autellix_backend.core.boost import ProgramBoost
from autellix_backend.core.place import Place
from autellix_backend.core.policies.base import Policy
from autellix_backend.core.table import Program


class Mlfq(Policy):
    """Favour calls that have run little, blind to programs."""

    name: ClassVar[str] = "mlfq"

    def inherit(self, program_service_s: float, parent_ends_s: Sequence[float] | None = None) -> float:  # noqa: ARG002
        """Start every call at zero."""
        return 0.0

    def place(self, program: Program, boost: ProgramBoost) -> Place:  # noqa: ARG002
        """Return the arrival of the program."""
        return Place(program.created_s)
