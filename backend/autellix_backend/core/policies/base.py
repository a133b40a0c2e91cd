"""What a policy decides: the service a new call starts with, and the service a program has after one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

__all__ = ["Policy"]


class Policy(ABC):
    """A rule without state; it may be called any number of times, in any order, and raises nothing."""

    name: ClassVar[str]
    has_levels: ClassVar[bool] = True
    """Whether calls are sorted into levels by service; without levels the order is that of arrival."""

    @abstractmethod
    def inherit(self, program_service_s: float) -> float:
        """Return the service an arriving call starts with, given its program's in the table."""

    @abstractmethod
    def complete(self, program_service_s: float, inherited_s: float, model_time_s: float) -> float:
        """Return the program's service after a call that inherited and ran for the given times."""
