"""The place of a program in an order by key, in the two parts of which the key is the sum."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, Protocol


class WorkClass(NamedTuple):
    """Programs that keep the order of their arrival, however strong the boost is."""

    tenant: str
    exponent: int
    """Their work counts as this power of two; `core.boost.UNIDENTIFIED` if it does not count."""

    @property
    def work(self) -> float:
        """The work that counts for each of them, in prompt tokens."""
        return 2.0**self.exponent


class Place(NamedTuple):
    """What only a program's own events change: its key is the base and the present boost of the class."""

    base: float
    work_class: WorkClass | None = None
    """The class of the program's work; None where nothing but the base counts."""


class Boosts(Protocol):
    """What classes of work are worth at present."""

    epoch: int
    """Changes whenever any boost does."""

    @property
    def tenants(self) -> Collection[str]:
        """The tenants whose boosts are not all zero."""
        ...

    def of(self, work_class: WorkClass | None) -> float:
        """Return the present boost of a class, zero or less."""
        ...


class NoBoosts:
    """The boosts where keys have one part."""

    epoch = 0
    tenants: Collection[str] = ()

    def of(self, work_class: WorkClass | None) -> float:  # noqa: ARG002
        """Return zero."""
        return 0.0


NO_BOOSTS: Boosts = NoBoosts()
