"""Counts the open scopes of programs and sessions, and finds what is open by its id. There is no lock.

Work that was started in such a scope, a task or a job, keeps the thing open after the scope has been left.
Most tasks end before, and a program may start very many. So each scope that is left looks for those that are
still under way, and only these get a hold.

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
    from typing import Any, Protocol, TypeVar

    class Opened(Protocol):
        """A program or session."""

        scopes: OpenScopes

    class Closes(Protocol):
        """Who leaves a scope of such a thing."""

        def close(self, thing: Any, /) -> None: ...

    K = TypeVar("K")
    V = TypeVar("V")
    T = TypeVar("T", bound=Opened)

FIRST, ANOTHER = "first", "another"


class OpenScopes:
    """The open scopes of one thing. The first one is open; once the last one is left, none can be opened.

    A list of marks. Each scope adds one and later takes the last one away, so the first mark goes with the
    last scope.
    """

    __slots__ = ("_marks", "tasks")

    def __init__(self) -> None:
        self._marks = [FIRST]
        self.tasks: dict[int, weakref.ref[Any]] | None = {}
        """The tasks started here, by their addresses, which come again; None for what never ends."""

    def open(self) -> bool:
        """Open another scope, or return False if the last one has been left."""
        self._marks.append(ANOTHER)
        return self._marks[0] is FIRST

    def leave(self) -> bool:
        """Leave a scope; return whether it was the last one."""
        return self._marks.pop() is FIRST

    def __bool__(self) -> bool:
        return self._marks[:1] == [FIRST]


class Hold:
    """A scope that is left when its work is done; where that never happens, it goes with the work."""

    __slots__ = ("_owner", "_thing")

    def __init__(self, owner: Closes, thing: Opened) -> None:
        self._owner = owner
        self._thing = thing if thing.scopes.open() else None

    def __call__(self, *_: object) -> None:
        """Leave the scope."""
        thing, self._thing = self._thing, None
        if thing is not None:
            safely(self._owner.close, thing)

    __del__ = __call__


def hold_for_tasks(owner: Closes, thing: Opened) -> None:
    """Open a scope of a thing for each of its tasks that is under way."""
    tasks = thing.scopes.tasks or {}
    for key, reference in list(tasks.items()):
        remove(tasks, key, reference)
        if (task := reference()) is not None and not task.done():
            safely(_hold_for, task, Hold(owner, thing))


def _hold_for(task: Any, hold: Hold) -> None:
    loop = task.get_loop()
    if loop is sys.modules["asyncio"]._get_running_loop():
        task.add_done_callback(hold)
    else:
        # In another thread than the loop's. If that is closed, the task can do nothing more.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(task.add_done_callback, hold)


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
