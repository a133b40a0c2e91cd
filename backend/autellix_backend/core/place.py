"""The place of a program in an order by key, in the two parts of which the key is the sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class WorkClass(NamedTuple):
    """Programs that keep the order of their arrival, however strong the boost is."""

    tenant: str
    exponent: int
    """Their work counts as this power of two."""

    @property
    def work(self) -> float:
        """The work that counts for each of them, in prompt tokens."""
        return 2.0**self.exponent


class Place(NamedTuple):
    """What only a program's own events change: its key is the base and the present boost of the class."""

    base: float
    work_class: WorkClass | None = None
    """None where nothing but the base counts."""


BoostOf = Callable[[WorkClass | None], float]
"""Returns the present boost of a class, zero or less."""


def no_boost(_: WorkClass | None) -> float:
    """Return the boost of any class where keys have one part."""
    return 0.0
