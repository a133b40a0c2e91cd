"""Shortest remaining processing time, over programs.

Rule: the program with the least service still to come runs first.
Formula: p(c) = the true service of all calls of the program that have not completed.
When to choose it: never live, for nobody knows it; in the simulator, as the bound to hold others against.
Cost: large programs wait as long as smaller ones keep coming.
"""

from __future__ import annotations

from typing import ClassVar

from autellix_backend.core.policies.base import Order
from autellix_backend.core.policies.plas import Plas

__all__ = ["Srpt"]


class Srpt(Plas):
    """Favour programs that need the least from now on, as only a simulator can know."""

    name: ClassVar[str] = "srpt"
    order: ClassVar[Order] = Order.SIZE
    shares_size: ClassVar[bool] = True
    is_clairvoyant: ClassVar[bool] = True
