"""Program-level attained service (PLAS).

Rule: a call's priority is the time the model has spent on its program's completed calls.
Formula: p(c_j) = sum of t_k over the earlier calls k of the same program (eq. 1); less is better.
When to choose it: single-threaded programs, such as chats and agent loops.
Cost: parallel calls of one program add up, so wide programs sink faster than they progress.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from autellix_backend.core.policies.base import Policy

__all__ = ["Plas"]


class Plas(Policy):
    """Favour programs that have received the least service."""

    name: ClassVar[str] = "plas"
    adds_service: ClassVar[bool] = True

    def inherit(self, program_service_s: float, parent_ends_s: Sequence[float] | None = None) -> float:  # noqa: ARG002
        """Start at what the program has attained."""
        return program_service_s  # Alg. 1, line 11

    def complete(self, program_service_s: float, inherited_s: float, model_time_s: float) -> float:  # noqa: ARG002
        """Add the call's time to the program's."""
        return program_service_s + model_time_s  # eq. 1; Alg. 1, line 4 as its comment reads for PLAS
