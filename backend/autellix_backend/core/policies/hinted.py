"""Least expected remainder, from hints.

Rule: the program that is expected to need the least service from now on runs first.
Formula: p(c) = the expected remainder of the program (see `core.estimate`: the client's hint in calls or
tokens, else the Gittins index over finished programs of its class), less the call's service since; without
either, the attained service of program and call, as in `plas`.
When to choose it: programs whose size is known even roughly, or classes of programs that recur.
Cost: a class of programs with several kinds of behaviour misleads it; hints have to be trusted.
"""

from __future__ import annotations

from typing import ClassVar

from autellix_backend.core.boost import ProgramBoost
from autellix_backend.core.call import Call
from autellix_backend.core.place import Place
from autellix_backend.core.policies.base import SizePolicy
from autellix_backend.core.policies.plas import Plas
from autellix_backend.core.table import Program


class Hinted(SizePolicy, Plas):
    """Favour programs that will soon be done."""

    name: ClassVar[str] = "hinted"
    rule: ClassVar[str] = "the program with the least expected work goes first"
    sizes_programs: ClassVar[bool] = True

    def size(self, call: Call, program: Program) -> float:
        """Return the expected remainder; if unknown, the attained service, for programs are heavy-tailed."""
        if program.expected_s is None:
            return program.service_s + call.service_s
        return max(0.0, program.expected_s - call.service_s)

    def place(self, program: Program, boost: ProgramBoost) -> Place:  # noqa: ARG002
        """Return the place by the expected remainder, or by the attained service where none is known."""
        return Place(program.service_s if program.expected_s is None else program.expected_s)
