"""Shortest remaining processing time, over programs.

Rule: the program with the least service still to come runs first.
Formula: p(c) = the true service of all calls of the program that have not completed.
When to choose it: never live, since no engine knows it; in the simulator, as the bound of what is possible.
Cost: large programs wait as long as smaller ones keep coming.
"""

from __future__ import annotations

from typing import ClassVar

from autellix_backend.core.boost import ProgramBoost
from autellix_backend.core.call import Call
from autellix_backend.core.place import Place
from autellix_backend.core.policies.base import SizePolicy
from autellix_backend.core.policies.plas import Plas
from autellix_backend.core.table import Program


class Srpt(SizePolicy, Plas):
    """Favour programs that need the least from now on, as only a simulator can know."""

    name: ClassVar[str] = "srpt"
    rule: ClassVar[str] = "the program with the least work left goes first"
    sizes_programs: ClassVar[bool] = True
    is_clairvoyant: ClassVar[bool] = True

    def size(self, call: Call, program: Program) -> float:
        """Return the remainder; if unknown, the attained service, for programs are heavy-tailed."""
        if program.expected_s is None:
            return program.service_s + call.service_s
        return max(0.0, program.expected_s - call.service_s)

    def place(self, program: Program, boost: ProgramBoost) -> Place:  # noqa: ARG002
        """Return the place by the remainder, or by the attained service where none is known."""
        return Place(program.service_s if program.expected_s is None else program.expected_s)
