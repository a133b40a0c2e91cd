"""What a policy decides: the order of calls, the service a call starts with, and a program's after a call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import StrEnum
from typing import ClassVar

__all__ = ["Order", "Policy"]


class Order(StrEnum):
    """How a policy's queue is kept."""

    ARRIVAL = "arrival"
    """One queue, first come, first served."""
    ROTATION = "rotation"
    """One queue; a call that used up its quantum goes to the end."""
    LEVELS = "levels"
    """K queues by attained service, first come, first served in each."""
    SIZE = "size"
    """One queue by expected size, smallest first, behind the calls that were promoted."""


class Policy(ABC):
    """A rule without state; it may be called any number of times, in any order, and raises nothing."""

    name: ClassVar[str]
    order: ClassVar[Order] = Order.LEVELS
    holds_slots: ClassVar[bool] = False
    """Whether a call that has started goes before all that have not, so that it is never preempted."""
    reads_parents: ClassVar[bool] = False
    """Whether a call's priority follows from its own parents, where they are known."""
    adds_service: ClassVar[bool] = False
    """Whether a program's service is the sum of its calls' and not the longest of their paths."""
    shares_size: ClassVar[bool] = False
    """Whether the expected size is that of the program's remainder and not of the call alone."""
    is_clairvoyant: ClassVar[bool] = False
    """Whether it needs what only a simulator knows."""

    @abstractmethod
    def inherit(self, program_service_s: float, parent_ends_s: Sequence[float] | None = None) -> float:
        """Return the service an arriving call starts with.

        Args:
            program_service_s: its program's in the table.
            parent_ends_s: for each parent, what it inherited plus what it ran; None where that is unknown.
        """

    @abstractmethod
    def complete(self, program_service_s: float, inherited_s: float, model_time_s: float) -> float:
        """Return the program's service after a call that inherited and ran for the given times."""

    def size(self, expected_s: float | None, program_service_s: float) -> float:  # noqa: ARG002
        """Return the size that a call is ordered by: what is expected to come, in seconds of service."""
        return expected_s or 0.0
