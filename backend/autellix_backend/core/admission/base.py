"""The interface of an admission rule; the defaults admit every program."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autellix_backend.core.admission.contexts import KvFill, count_tokens
from autellix_backend.core.admission.costs import HostLoads
from autellix_backend.core.admission.memory import EngineMemory
from autellix_backend.core.arrival import Context
from autellix_backend.core.call import Call
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.place import NO_BOOSTS, Boosts, Place
from autellix_backend.core.statistics import PrefillCost, ProgramStatistics, TokenCost
from autellix_backend.core.table import Program

NEVER_STEPS = 1 << 30
"""Steps to the next review of a rule that acts only when a call arrives or leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionInputs:
    """What a rule may decide by."""

    config: SchedulerConfig
    kv_tokens: float
    """The KV memory of the engine, in tokens."""
    statistics: ProgramStatistics
    token_cost: TokenCost
    prefill: PrefillCost
    """What prefilling costs the engine."""
    place_of: Callable[[Program], Place]
    """Returns the place of a program by the policy; the smallest key goes first."""
    holding: Mapping[str, Mapping[str, Call]]
    """The calls that hold KV memory, by program: those that run or are pinned."""
    boosts: Boosts = NO_BOOSTS
    """The present boosts of classes of work."""
    fill: KvFill = count_tokens
    """How contexts fill the KV memory."""


class Admission:
    """Decides which calls may enter the queues of one engine, and sets their `is_admitted`."""

    memory: EngineMemory | None = None
    """The KV memory that the rule allots; None where every program may run."""

    @property
    def wake_s(self) -> float:
        """When it decides next about calls that it holds back, even if nothing happens; inf for never."""
        return math.inf

    def arrive(self, call: Call, program: Program, needs: Context | None, now: float) -> None:
        """Note an arriving call and the KV memory that it needs, and set whether it is admitted."""

    def leave(self, call: Call, program: Program, context_tokens: int, now: float) -> None:
        """Note that a call has left, and the tokens that its whole context leaves in KV memory."""

    def forget(self, program_id: str) -> None:
        """Free what is kept for a program that has ended; it may be unknown or have calls yet."""

    def lose_contexts(self) -> None:
        """Note that KV memory has lost every context, as the prefix cache was reset."""

    def spare_tokens(self, now: float) -> int:  # noqa: ARG002
        """Return the KV memory of programs without a call that would make way for any that waits."""
        return 0

    @property
    def hold_s(self) -> float | None:
        """The time for which an idle program is kept whose gaps are unknown; None where every one may run."""
        return None

    def is_active(self, program_id: str) -> bool:  # noqa: ARG002
        """Whether a call of the program that is preempted stays in its queue."""
        return True

    def move(self, program_id: str) -> None:
        """Give a program, which may be unknown, its present place."""

    def is_due(self, step: int) -> bool:  # noqa: ARG002
        """Whether there may be anything to review."""
        return False

    def steps_to_review(self, step: int) -> int:  # noqa: ARG002
        """Return the steps until there is something to review, if nothing happens before."""
        return NEVER_STEPS

    def review(self, now: float, step: int, tokens_of: Callable[[str], int]) -> list[Call]:  # noqa: ARG002
        """Decide at the beginning of a step; return the waiting calls that it admitted or withdrew.

        `tokens_of` returns the present context (tokens) of an active call.
        """
        return []

    def take_to_keep(self) -> list[str]:
        """Return the idle programs whose cached blocks should now outlive all others, the first to go first.

        Empty unless enough blocks that matter less were freed since the last time.
        """
        return []

    def use_host_memory(self, loads: HostLoads, tokens: float) -> None:
        """Take into account that contexts may be loaded from host memory, for which it has room in tokens.

        Called once, by its owner.
        """

    def take_stored(self) -> Mapping[str, bool]:
        """Return whose contexts host memory should keep from now on, and whose it need not."""
        return {}

    def check(self) -> None:
        """Assert the invariants."""
