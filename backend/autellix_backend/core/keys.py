"""The keys of programs by the policy, brought up to date as the boost moves."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from autellix_backend.core.boost import ProgramBoost
from autellix_backend.core.policies import Policy
from autellix_backend.core.table import Program

KEYS_PER_TICK = 32
"""Programs and calls whose keys a tick computes again after the boost has moved."""


class ProgramKeys:
    """The programs' keys; those of an earlier boost are computed again, some in each tick.

    All at once they would take milliseconds with a thousand programs. The boost moves by a tenth at a time,
    and a program's own events give it its present key.
    """

    def __init__(self, policy: Policy, boost: ProgramBoost) -> None:
        self._policy = policy
        self._boost = boost
        self._stale: list[str] = []
        self._marked: dict[str, None] = {}
        """Programs whose own key has moved."""

    @property
    def are_stale(self) -> bool:
        """Whether the next decision gives programs keys that have moved without an event of their own."""
        return bool(self._stale or self._marked)

    def mark(self, programs: Iterable[str]) -> None:
        """Note that keys of programs have moved; they may be unknown."""
        if self._policy.boosts:
            self._marked |= dict.fromkeys(programs)

    def move_marked(self, rekey: Callable[[str], int]) -> None:
        """Compute the keys of some marked programs again; `rekey` is that of `refresh`."""
        keys_left = KEYS_PER_TICK
        while self._marked and keys_left > 0:
            keys_left -= 1 + rekey(self._marked.popitem()[0])

    def of(self, program: Program) -> float:
        """Return the key of a program; the smallest goes first."""
        return self._policy.program_key(program, self._boost)

    def refresh(self, programs: Callable[[], Iterable[str]], rekey: Callable[[str], int]) -> None:
        """Compute some keys again if the boost has moved.

        Args:
            programs: Returns the programs that have keys; some may come up twice.
            rekey: Gives a program and its calls their present key, and returns the number of its calls.
        """
        if not self._stale and self._policy.boosts and self._boost.refresh():
            self._stale = list(dict.fromkeys(programs()))
        keys_left = KEYS_PER_TICK
        while self._stale and keys_left > 0:
            keys_left -= 1 + rekey(self._stale.pop())
