"""The places of programs by the policy, and which of them have moved without an event of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from autellix_backend.core.boost import ProgramBoost
from autellix_backend.core.place import Place
from autellix_backend.core.policies import Policy
from autellix_backend.core.table import Program

MOVES_PER_REVIEW = 32
"""Programs and calls of a group that a review moves: all at once they would take milliseconds."""


class ProgramPlaces:
    """The programs' places. As a program of a group ends, the others move, some in each review."""

    def __init__(self, policy: Policy, boost: ProgramBoost) -> None:
        self._policy = policy
        self._boost = boost
        self._marked: dict[str, None] = {}

    @property
    def are_stale(self) -> bool:
        """Whether the next review moves programs."""
        return bool(self._marked)

    def of(self, program: Program) -> Place:
        """Return the present place of a program."""
        return self._policy.place(program, self._boost)

    def mark(self, programs: Iterable[str]) -> None:
        """Note that programs have moved; they may be unknown."""
        if self._policy.boosts:
            self._marked |= dict.fromkeys(programs)

    def move_marked(self, move: Callable[[str], int]) -> None:
        """Move some of the marked programs.

        Args:
            move: Gives a program and its calls their present place, and returns the number of its calls.
        """
        moves_left = MOVES_PER_REVIEW
        while self._marked and moves_left > 0:
            moves_left -= 1 + move(self._marked.popitem()[0])
