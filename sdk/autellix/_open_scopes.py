"""Counts the open scopes of programs and sessions, and finds what is open by its id. There is no lock.

A scope may be opened and left in a finalizer, which may run at any allocation, on top of the code that it
has interrupted: to wait for that code would be to wait for ever. To wait for another thread is no better, for
that one may be inside a finalizer that waits for this one. So each change is one step of a list or a dict.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol, TypeVar

    class Opened(Protocol):
        """A program or session."""

        scopes: OpenScopes

    T = TypeVar("T", bound=Opened)

FIRST, ANOTHER = "first", "another"


class OpenScopes:
    """The open scopes of one thing. The first one is open; once the last one is left, none can be opened.

    A list of marks. Each scope adds one and later takes the last one away, so the first mark goes with the
    last scope.
    """

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        self._marks = [FIRST]

    def open(self) -> bool:
        """Open another scope, or return False if the last one has been left."""
        self._marks.append(ANOTHER)
        return self._marks[0] is FIRST

    def leave(self) -> bool:
        """Leave a scope; return whether it was the last one."""
        return self._marks.pop() is FIRST

    def __bool__(self) -> bool:
        return self._marks[:1] == [FIRST]


def find_open(table: dict[str, T], key: str) -> T | None:
    """Open another scope of what is open under a key; None if nothing is."""
    found = table.get(key)
    if found is None or found.scopes.open():
        return found
    # Whoever has left its last scope has not removed it yet.
    remove(table, key, found)
    return None


def add_open(table: dict[str, T], key: str, fresh: T) -> T | None:
    """Add something with its first scope; if another thing has come under the key, open a scope of that."""
    return fresh if table.setdefault(key, fresh) is fresh else find_open(table, key)


def remove(table: dict[str, T], key: str, thing: T) -> None:
    """Remove a thing, and nothing else that has come under its key."""
    try:
        # No call stands between: finalizers, signals and other threads come before both lines or after them.
        if table[key] is thing:
            del table[key]
    except KeyError:
        pass
