"""Least expected remainder, from hints.

Rule: the program that is expected to need the least service from now on runs first.
Formula: p(c) = the expected remainder of the program (see `core.estimate`: the client's hint in calls or
tokens, else the Gittins index over finished programs of its class), less what it has received since; without
either, its attained service, as in `plas`.
When to choose it: programs whose size can be told even roughly, or classes of programs that come again.
Cost: a class of programs with several kinds of behaviour misleads it; hints have to be trusted.
"""

from __future__ import annotations

from typing import ClassVar

from autellix_backend.core.policies.base import Order
from autellix_backend.core.policies.plas import Plas

__all__ = ["Hinted"]


class Hinted(Plas):
    """Favour programs that will soon be done."""

    name: ClassVar[str] = "hinted"
    order: ClassVar[Order] = Order.SIZE
    shares_size: ClassVar[bool] = True

    def size(self, expected_s: float | None, program_service_s: float) -> float:
        """Return the expected remainder; programs being heavy-tailed, that is what they had, if unknown."""
        return program_service_s if expected_s is None else expected_s
