"""Program-level attained service (PLAS).

Rule: a call's priority is the time the model has spent on its program's completed calls.
Formula: p(c_j) = sum of t_k over the earlier calls k of the same program (eq. 1); less is better.
When to choose it: single-threaded programs, such as chats and agent loops.
Cost: parallel calls of one program add up, so wide programs sink faster than they progress.
"""

from __future__ import annotations

from typing import ClassVar

from autellix_backend.core.policies.base import Policy


class Plas(Policy):
    """Favour programs that have received the least service."""

    name: ClassVar[str] = "plas"
    adds_service: ClassVar[bool] = True
