"""Counts the open scopes of programs and sessions, and finds what is open by its id. There is no lock.

Work that was started in such a scope, a task or a job, keeps the thing open after the scope has been left.
Most work ends before, and a program may start very much of it. So each scope that is left looks for what is
still under way, and only that gets a hold.

A scope may be opened and left in a finalizer, which may run at any allocation, on top of the code that it
has interrupted: to wait for that code would be to wait for ever. To wait for another thread is no better, for
that one may be inside a finalizer that waits for this one. So each change is one step of a list or a dict.
"""

from __future__ import annotations

import contextlib
import sys
import weakref

from autellix._faults import safely

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol, TypeVar

    class Opened(Protocol):
        """A program or session."""

        scopes: OpenScopes

    K = TypeVar("K")
    V = TypeVar("V")
    T = TypeVar("T", bound=Opened)

FIRST, ANOTHER = "first", "another"
LEAST_NOTED = 64
"""How much work is noted before it is looked through for what has ended."""


class OpenScopes:
    """The open scopes of one thing. The first one is open; once the last one is left, none can be opened.

    A list of marks. Each scope adds one and later takes the last one away, so the first mark goes with the
    last scope.
    """

    __slots__ = ("_marks", "_most_noted", "work")

    def __init__(self) -> None:
        self._marks = [FIRST]
        self.work: dict[int, weakref.ref[Any]] | None = {}
        """The tasks and jobs that were started here, by their addresses; None for what never ends."""
        self._most_noted = LEAST_NOTED

    def open(self) -> bool:
        """Open another scope, or return False if the last one has been left."""
        self._marks.append(ANOTHER)
        return self._marks[0] is FIRST

    def leave(self) -> bool:
        """Leave a scope; return whether it was the last one."""
        return self._marks.pop() is FIRST

    def __bool__(self) -> bool:
        return self._marks[:1] == [FIRST]

    def note(self, work: Any) -> None:
        """Note a task or job that is started here."""
        if self.work is not None:
            self.work[id(work)] = weakref.ref(work)
            self.forget_done()

    def forget_done(self) -> None:
        """Forget the work that has ended, if much is noted."""
        noted = self.work
        if noted is None or len(noted) <= self._most_noted:
            return
        for key, reference in list(noted.items()):
            if (work := reference()) is None or work.done():
                remove(noted, key, reference)
        self._most_noted = max(LEAST_NOTED, 2 * len(noted))

    def hold_for_work(self, close: Callable[[], object]) -> None:
        """Open a scope for each task and job that is under way; its end leaves the scope by `close`."""
        noted = self.work or {}
        for key, reference in list(noted.items()):
            remove(noted, key, reference)
            if (work := reference()) is not None:
                safely(self._hold_for, work, close)

    def _hold_for(self, work: Any, close: Callable[[], object]) -> None:
        if work.done():
            return
        hold, loop = Hold(self, close), work.get_loop() if hasattr(work, "get_loop") else None
        if loop is None or loop is sys.modules["asyncio"]._get_running_loop():
            work.add_done_callback(hold)
            return
        # Of a loop that is closed, the task can do nothing more.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(work.add_done_callback, hold)


class Hold:
    """A scope that is left when its work is done; where that never happens, it goes with the work."""

    __slots__ = ("_close",)

    def __init__(self, scopes: OpenScopes, close: Callable[[], object]) -> None:
        self._close = close if scopes.open() else None

    def __call__(self, *_: object) -> None:
        """Leave the scope."""
        close, self._close = self._close, None
        if close is not None:
            safely(close)

    __del__ = __call__


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


def remove(table: dict[K, V], key: K, thing: V) -> None:
    """Remove a thing, and nothing else that has come under its key."""
    try:
        # No call stands between: finalizers, signals and other threads come before both lines or after them.
        if table[key] is thing:
            del table[key]
    except KeyError:
        pass
