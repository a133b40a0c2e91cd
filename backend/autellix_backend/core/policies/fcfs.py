"""First come, first served.

Rule: calls run in order of arrival and keep their slot until they finish.
Formula: p(c) = 0 for every call; one level, so there is nothing to demote or promote.
When to choose it: as the baseline, or when every program is one call of similar size.
Cost: a long call blocks short ones, and a long program blocks short ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from autellix_backend.core.policies.base import Order, Policy

__all__ = ["Fcfs"]


class Fcfs(Policy):
    """Serve calls in order of arrival, blind to programs."""

    name: ClassVar[str] = "fcfs"
    order: ClassVar[Order] = Order.ARRIVAL

    def inherit(self, program_service_s: float, parent_ends_s: Sequence[float] | None = None) -> float:  # noqa: ARG002
        """Start every call at zero."""
        return 0.0

    def complete(self, program_service_s: float, inherited_s: float, model_time_s: float) -> float:
        """Keep the program's longest call."""
        return max(program_service_s, inherited_s + model_time_s)
