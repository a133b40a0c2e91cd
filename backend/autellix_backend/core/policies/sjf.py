"""Shortest job first, over single calls.

Rule: of the waiting calls the one of least expected size runs next; a running call keeps its slot.
Formula: p(c) = prompt tokens + 2 x output tokens, in nominal seconds; a live engine does not know the output
and takes the request's `max_tokens`, a simulator takes the true length.
When to choose it: as a baseline, or for independent calls whose `max_tokens` is honest.
Cost: it is blind to programs, and a wrong size cannot be corrected while the call runs.
"""

from __future__ import annotations

from typing import ClassVar

from autellix_backend.core.policies.base import SizePolicy
from autellix_backend.core.policies.mlfq import Mlfq


class Sjf(SizePolicy, Mlfq):
    """Favour calls that will be short, blind to programs."""

    name: ClassVar[str] = "sjf"
    rule: ClassVar[str] = "the call with the least expected work goes first"
    holds_slots: ClassVar[bool] = True
