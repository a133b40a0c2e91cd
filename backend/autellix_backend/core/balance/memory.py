"""The state of an engine's admission for the balancer, so that both have one estimate of its memory.

A program waits for activation while the contexts of the programs that are there, active or not, leave no
room for its own. Programs that end free memory: a mean context in each mean time between two ends. Where host
memory keeps contexts, a parked program returns without an end, so it counts like an active one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from autellix_backend.core.machine import Machine


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryReport:
    """The working set of one engine at one moment; the report of each moment is an object of its own."""

    capacity_tokens: float
    """KV tokens that the contexts of active programs may fill; with host memory, those of parked ones too."""
    active_tokens: int
    """KV tokens of the contexts that the capacity bounds, shared prefixes counted once."""
    active_programs: int
    """The active programs, and the parked ones."""
    spare_tokens: int = 0
    """KV tokens of contexts that would make way for any program that waits, as they have had no call for
    longer than admission keeps them then: their programs have ended, moved or are idle."""
    inactive_tokens: int = 0
    """KV tokens that the contexts of programs waiting for activation would add."""
    inactive_calls: int = 0
    """The calls of those programs."""
    between_ends_s: float = 0.0
    """The mean time (s) between two ends of programs there; 0 if unknown."""
    known: Collection[str] = frozenset()
    """The programs that the numbers include."""
    inactive: Collection[str] = frozenset()
    """Programs of `known` that wait for activation."""
    is_complete: bool = True
    """Whether `known` contains every program of the engine."""

    def wait_s(
        self,
        own_tokens: float,
        *,
        sent_tokens: float = 0.0,
        between_ends_s: float = 0.0,
        is_inactive: bool = False,
    ) -> float:
        """Return how long (s) a program that is not active should wait for activation.

        Args:
            own_tokens: The memory that it needs.
            sent_tokens: That of others which came since.
            between_ends_s: The least time between two ends of programs, for an engine that has seen few.
            is_inactive: Whether it is one of those that wait.
        """
        beside_tokens = self.active_tokens - self.spare_tokens + sent_tokens + own_tokens
        if beside_tokens <= self.capacity_tokens:
            return 0.0
        others_tokens = max(0.0, self.inactive_tokens - (own_tokens if is_inactive else 0.0))
        mean_tokens = max(1.0, self.active_tokens / max(1, self.active_programs))
        ends = (beside_tokens + others_tokens - self.capacity_tokens) / mean_tokens
        return ends * max(between_ends_s, self.between_ends_s)

    @property
    def demand(self) -> float:
        """The contexts of all programs there, active or not, over what active ones may fill.

        Spare ones do not count: programs whose ends nobody announces leave them for minutes.
        """
        needed_tokens = self.active_tokens - self.spare_tokens + self.inactive_tokens
        return max(0, needed_tokens) / max(1.0, self.capacity_tokens)

    @property
    def mean_wait_s(self) -> float:
        """How long (s) a new program with a mean context should wait."""
        return self.wait_s(self.active_tokens / max(1, self.active_programs))


def memory_of(machine: Machine, now: float) -> MemoryReport | None:
    """Return the present state of an engine's memory; None if every program may run."""
    memory = machine.admission.memory
    if memory is None:
        return None
    active, parked = memory.active, memory.parked
    inactive = {name: each for name, each in memory.inactive.contexts.items() if not each.is_parked}
    present = (*active.contexts.values(), *parked.contexts.values())
    live = len(inactive) + sum(bool(context.calls) for context in present)
    return MemoryReport(
        capacity_tokens=memory.room_tokens,
        active_tokens=active.tokens + parked.tokens,
        active_programs=len(present),
        spare_tokens=machine.admission.spare_tokens(now),
        inactive_tokens=active.added_by(inactive.values()),
        inactive_calls=sum(len(context.calls) for context in inactive.values()),
        between_ends_s=machine.table.statistics.response_s / max(1, live),
        known=frozenset((*active.contexts, *parked.contexts, *inactive)),
        inactive=frozenset(inactive),
    )
