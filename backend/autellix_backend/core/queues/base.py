"""The interface of a policy's queue."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import count

from autellix_backend.core.call import Call, LevelChange
from autellix_backend.core.table import Program


class Queue(ABC):
    """The active calls of one tenant, running ones included, in the order of their `rank`.

    A queue sets the call's level, key, sequence number and quantum. Calls of level 1 run first.
    """

    def __init__(self, numbers: Iterator[int] | None = None) -> None:
        """Make an empty queue; `numbers` continues the sequence that all queues of one machine share."""
        self._numbers = count() if numbers is None else numbers

    @abstractmethod
    def __iter__(self) -> Iterator[Call]:
        """Walk the calls, the next to run first."""

    @abstractmethod
    def insert(self, call: Call, program: Program) -> None:
        """Queue a new call where its service or size puts it (Alg. 1, lines 12-13)."""

    @abstractmethod
    def remove(self, call: Call) -> None:
        """Remove a queued call."""

    @abstractmethod
    def promote(self, call: Call) -> None:
        """Move a call to the end of level 1 (Alg. 1, line 27)."""

    @abstractmethod
    def on_quantum_used(self, call: Call, program: Program) -> LevelChange:
        """Move a call whose quantum is used up, or whose program's size has changed; return the change.

        Called once per tick, and only for calls whose quantum binds (`Call.is_quantum_binding`).
        """

    def is_deferred(self, call: Call) -> bool:  # noqa: ARG002
        """Whether a call whose quantum is used up keeps its place until it has decoded some more."""
        return False

    def on_started(self, call: Call) -> None:  # noqa: B027 - most queues ignore who runs
        """React to a call that got a slot."""

    def first_of(self, program_id: str) -> Call | None:  # noqa: ARG002
        """Return the first call of a program, with which all of them move; None where each moves alone."""
        return None

    @abstractmethod
    def level_sizes(self) -> tuple[int, ...]:
        """Return the number of calls in each level, running ones included."""

    @abstractmethod
    def check(self) -> None:
        """Assert the invariants of the queue."""
