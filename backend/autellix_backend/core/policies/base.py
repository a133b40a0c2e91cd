"""The interface of a scheduling policy; the defaults are those of program-level levels (Algorithm 1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from autellix_backend.core.boost import ProgramBoost
from autellix_backend.core.call import Call
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.place import Place
from autellix_backend.core.queues.base import Queue
from autellix_backend.core.queues.keyed import KeyedQueue
from autellix_backend.core.queues.levels import LevelQueue
from autellix_backend.core.table import Program


@dataclass(frozen=True, slots=True)
class QueueInputs:
    """What a policy makes a tenant's queue of."""

    config: SchedulerConfig
    numbers: Iterator[int]
    """The sequence that all queues of one machine share."""
    boost: ProgramBoost
    """The places of programs, for policies that boost them."""


class Policy:
    """A rule without state: its methods may be called at any time, any number of times, and raise nothing."""

    name: ClassVar[str]
    rule: ClassVar[str] = "calls of the best queue level run first, in order of arrival within a level"
    """The order of calls in words, for `autellix why`."""
    reorders: ClassVar[bool] = True
    """Whether calls may run in another order than that of their arrival."""
    has_levels: ClassVar[bool] = True
    """Whether its queue has the configured levels."""
    holds_slots: ClassVar[bool] = False
    """Whether a running call keeps its slot until it finishes, whichever calls wait."""
    reads_parents: ClassVar[bool] = False
    """Whether a call's priority follows from its own parents, where they are known."""
    adds_service: ClassVar[bool] = False
    """Whether a program's service is the sum of its calls and not the longest of their paths."""
    sizes_programs: ClassVar[bool] = False
    """Whether calls are ordered by the expected remainder of their program, which changes with every call."""
    boosts: ClassVar[bool] = False
    """Whether calls are ordered by the key of their program, which changes as its calls end."""
    preempts: ClassVar[bool] = True
    """Whether a waiting call may take the slot of a running one that comes after it."""
    acts_on_service: ClassVar[bool] = True
    """Whether what a running call has received moves it, or decides about its preemption."""
    promotes: ClassVar[bool] = True
    """Whether waiting calls are promoted as their wait/service ratio reaches beta."""
    is_clairvoyant: ClassVar[bool] = False
    """Whether it needs what only a simulator knows."""

    def make_queue(self, inputs: QueueInputs) -> Queue:
        """Return an empty queue for the calls of one tenant."""
        config = inputs.config
        return LevelQueue(config.bounds, config.quanta, inputs.numbers, demotes=config.demotes)

    def inherit(self, program_service_s: float, parent_ends_s: Sequence[float] | None = None) -> float:  # noqa: ARG002
        """Return the service that an arriving call starts with.

        Args:
            program_service_s: The service of its program in the table.
            parent_ends_s: For each parent the service that it inherited plus its own; None if unknown.
        """
        return program_service_s  # Alg. 1, line 11

    def complete(self, program_service_s: float, inherited_s: float, model_time_s: float) -> float:
        """Return the program's service after a call that inherited and ran for the given times."""
        if self.adds_service:
            return program_service_s + model_time_s  # eq. 1; Alg. 1, line 4 as its comment reads for PLAS
        return max(program_service_s, inherited_s + model_time_s)  # eq. 2; Alg. 1, line 4

    def size(self, call: Call, program: Program) -> float:  # noqa: ARG002
        """Return the service (s) that is still expected, for a `KeyedQueue`: the least runs first."""
        return call.expected_s or 0.0

    def place(self, program: Program, boost: ProgramBoost) -> Place:  # noqa: ARG002
        """Return a program's place in the order in which admission activates them; the first goes first."""
        return Place(program.service_s)


class SizePolicy(Policy):
    """A policy that orders calls by an expected size and has no levels."""

    has_levels: ClassVar[bool] = False

    def make_queue(self, inputs: QueueInputs) -> Queue:
        """Return a queue ordered by `size`."""
        return KeyedQueue(
            self.size,
            inputs.config.first_quantum_s,
            inputs.numbers,
            holds_slots=self.holds_slots,
            changes_sizes=self.sizes_programs,
        )
