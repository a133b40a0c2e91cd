"""Defines a thread's progress, and how the progress of one joins the frontier of another."""

from __future__ import annotations

from autellix_wire.ids import MAX_PARENTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    Frontier = tuple[str, ...] | None

    class HasFrontier(Protocol):
        """A thread, or a program between two turns."""

        frontier: Frontier


class Progress:
    """The frontier that a thread has reached, and the frontier that it inherited; it is pickled."""

    __slots__ = ("frontier", "inherited")

    def __init__(self, frontier: tuple[str, ...] | None, inherited: tuple[str, ...] | None) -> None:
        self.frontier = frontier
        self.inherited = inherited


def joined(frontier: Frontier, later: Frontier, inherited: Frontier) -> list[str]:
    """Return the calls of a frontier and of a later one, without those that the later one implies."""
    implied = set(inherited or ()) - set(later or ())
    own = [call for call in frontier or () if call not in implied]
    return own + [call for call in later or () if call not in own]


def join(holder: HasFrontier, later: Frontier, inherited: Frontier) -> bool:
    """Let what comes next depend on a later frontier too; return whether some calls had to be left out."""
    while True:
        before = holder.frontier
        calls = joined(before, later, inherited)
        after = tuple(calls[-MAX_PARENTS:])
        # No call stands between: finalizers, signals and other threads come before both lines or after them.
        if holder.frontier is before:
            holder.frontier = after
            return len(calls) > MAX_PARENTS
