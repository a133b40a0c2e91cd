"""Defines a thread's progress, and how the progress of one joins the frontier of another."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    Frontier = tuple[str, ...] | None


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
