"""Defines a thread of a program: which calls its next call depends on, and how branches join.

Theory. A *program thread* is one branch of a program: an operating system thread, a task, a job, or the body
of a `with program(...)`.

- `frontier` is the set of calls that the thread's next call depends on: None if unknown, empty for a root.
  A call replaces it by itself. When a child finishes, its frontier joins its parent's, and the frontier that
  the child inherited is removed, because it is an ancestor of the child's calls.
- A thread takes its id at its first call and returns it when it is collected, so ids stay small and no live
  sibling shares one.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque

from autellix._faults import safely
from autellix._programs.progress import Progress, join
from autellix_wire.ids import MAX_PARENTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType
    from typing import Any

    from autellix._programs.program import ClientProgram
    from autellix._sessions.session import ClientSession

MAX_ANCESTORS = 4
NUMBERED = ("Task-", "Thread-", "Greenlet-")
"""The beginnings of names such as "Task-12" and "Thread-3 (run)"."""


class ProgramThread:
    """One branch of a program.

    Most threads, such as those of tasks, never call: attributes that few threads need are class defaults.
    """

    previous: ProgramThread | None = None
    """The scope that this one was opened in; it resumes when this one closes."""
    carrier: weakref.ref[Any] | None = None
    """The task or `threading.Thread` that this thread is attached to."""
    name: str | None = None
    """From a scope, a framework, or its task; empty if it has none, None before its first call."""
    frame: FrameType | None = None
    """The generator that opened this scope; the scope holds only while the generator runs."""
    branch_point: Progress | None = None
    """Where branches start during a fan-out; None for the current frontier."""
    lineage: tuple[weakref.ref[ProgramThread], ...] | None = None
    """The ancestors of its branches, made once."""
    children: deque[ProgramThread] | tuple[()] = ()
    """The branches that it has not joined yet; they add themselves."""
    interceptions: Sequence[tuple[str, float]] = ()
    """Tools that ran since the last call: name, seconds."""
    is_closed = False
    is_lasting = False
    """Whether it stays in its program after that has ended."""
    is_joined = False
    """Whether its ancestors know of it."""
    is_truncated = False
    added: tuple[str, tuple[str, ...] | None] | None = None
    """The last request that it has added to an engine of this process, and the calls that it depends on."""
    is_fanned_out = False
    """Whether it is a job of several that were submitted together."""
    _thread_id: int | None = None
    _free_thread_ids: list[int] | None = None

    def __init__(
        self,
        program: ClientProgram,
        frontier: tuple[str, ...] | None,
        session: ClientSession | None = None,
        ancestors: tuple[weakref.ref[ProgramThread], ...] = (),
    ) -> None:
        self.program = program
        self.frontier = self.inherited = frontier
        self.session = session
        """The session that the user has opened around it; None for the session of the process."""
        self.ancestors = ancestors
        """Threads that may join it, nearest first; several, because a short-lived one may be collected."""

    def branch(self) -> ProgramThread:
        lineage = self.lineage or self.make_lineage()
        branch = ProgramThread(self.program, self.branch_frontier(), self.session, lineage)
        if self.branch_point is not None:
            branch.is_fanned_out = True
        return branch

    def sibling(self) -> ProgramThread:
        """Return another branch of the point at which this one branched."""
        return ProgramThread(self.program, self.frontier, self.session, self.ancestors)

    def branch_frontier(self) -> tuple[str, ...] | None:
        """Return the frontier that a branch inherits."""
        if self.branch_point is not None:
            return self.branch_point.frontier
        return self.join_finished() if self.children else self.frontier

    def make_lineage(self) -> tuple[weakref.ref[ProgramThread], ...]:
        """Return the ancestors of this thread's branches, and keep them."""
        lineage = self.lineage = (weakref.ref(self), *self.ancestors[: MAX_ANCESTORS - 1])
        return lineage

    def nested_in(self, previous: ProgramThread | None, thread_id: int | None = None) -> ProgramThread:
        """Make this a scope inside another one, with a given thread id if any; return it."""
        self.previous = previous
        self._thread_id = thread_id
        return self

    def after_fork_in_child(self) -> None:
        """Drop the parent's calls and threads, which are not part of the child's program."""
        self.frontier, self.children, self.ancestors, self._thread_id = (), deque(), (), None
        self.lineage = None
        self.session = None

    def __del__(self) -> None:
        if self._free_thread_ids is not None and self._thread_id is not None:
            self._free_thread_ids.append(self._thread_id)

    @property
    def thread_id(self) -> int:
        """The thread's number inside its program, taken at the first use."""
        if self._thread_id is None:
            self._thread_id = self.program.take_thread_id()
            # Kept, because the program of a forked child starts another list.
            self._free_thread_ids = self.program.free_thread_ids
        return self._thread_id

    @property
    def thread_name(self) -> str | None:
        """Its name, else that of the nearest ancestor with one: libraries make calls in tasks of theirs."""
        # Not looked for again where the first call has found none: each call asks.
        return self.name or (None if self.name == "" and not self.ancestors else safely(self._find_name))

    def _find_name(self) -> str | None:
        name = self._own_name()
        for reference in self.ancestors:
            if name:
                break
            thread = reference()
            name = "" if thread is None else thread._own_name()
        return name or None

    def _own_name(self) -> str:
        if self.name is None:
            # Kept: a thread has one name, and each call asks for those of its ancestors.
            self.name = _given_name(None if self.carrier is None else self.carrier())
        return self.name

    def open_session(self) -> ClientSession | None:
        """Return the session that the user has opened around it, while that is open."""
        session = self.session
        return session if session is not None and session.scopes else None

    def is_over(self) -> bool:
        """Return whether later calls are not in it: it was left, or its program has ended."""
        program = self.program
        if program.end_signal is not None:
            program.look_for_end()
        return self.is_closed or (program.has_ended and not self.is_lasting)

    def is_finished(self) -> bool:
        """Return whether this thread can make no further call."""
        if self.is_closed:
            return True
        if self.carrier is None:
            return False
        carrier = self.carrier()
        if carrier is None:
            return True
        if hasattr(carrier, "is_alive"):
            return not carrier.is_alive()
        # A task has a method, a greenlet an attribute.
        return bool(carrier.done() if hasattr(carrier, "done") else carrier.dead)

    def join_finished(self) -> tuple[str, ...] | None:
        """Join the children that have finished, and return the frontier."""
        if self.children:
            self._absorb_finished()
        return self.frontier

    def progress(self) -> Progress:
        """Return this thread's progress, for a waiter that the client does not see join it."""
        return Progress(self.join_finished(), self.inherited)

    def follow(self, progress: Progress) -> None:
        """Let the next call depend on the progress of another thread, whose message or result has arrived."""
        # A thread that waits for this one depends on it too, even if this one makes no call of its own.
        self._join_ancestors()
        self._follow(progress.frontier, progress.inherited)

    def _follow(self, frontier: tuple[str, ...] | None, inherited: tuple[str, ...] | None) -> None:
        if frontier == inherited or (frontier is None and self.frontier is None):
            # It has made no call: what it started from is before this thread already.
            return
        if join(self, frontier, inherited):
            self.is_truncated = True

    def _absorb_finished(self) -> None:
        """Join the children that have finished; the running children of these become its own.

        Each is taken by one who joins and by no other, so a finalizer that makes a call here sees a part.
        """
        # Iterative: branches may nest more deeply than Python recurses.
        levels = [(self, len(self.children))]
        while levels:
            thread, left = levels.pop()
            child = _take_first(thread.children) if left else None
            if child is None:
                if levels:
                    levels[-1][0]._absorb(thread)
                continue
            levels.append((thread, left - 1))
            if child.is_finished():
                levels.append((child, len(child.children)))
            else:
                self._keep_child(child)

    def _absorb(self, child: ProgramThread) -> None:
        self.is_truncated |= child.is_truncated
        self._follow(child.frontier, child.inherited)
        if child.interceptions:
            self._add_interceptions(child._take_interceptions())

    def record_call(self, call_id: str) -> tuple[str, ...] | None:
        """Record that this thread makes a call; return the calls it depends on."""
        self._join_ancestors()
        self.program.has_called = True
        if self.branch_point is not None:
            return self._record_in_fan_out(call_id, self.branch_point.frontier)
        while True:
            parents = self.join_finished()
            # No call stands between, as in `join`.
            if self.frontier is parents:
                self.frontier = (call_id,)
                return parents

    def _record_in_fan_out(self, call_id: str, parents: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """Record a call made between the starts of two branches, such as by a generator of their arguments.

        It follows the fan-out's other calls, but no branch; the branches that start later follow it.
        """
        self.follow(Progress((call_id,), parents))
        self.branch_point = Progress((call_id,), parents)
        return parents

    def record_tool(self, name: str, seconds: float) -> None:
        """Record that a tool ran here between two calls."""
        self._join_ancestors()
        self._add_interceptions([(name, seconds)])

    def take_interceptions(self) -> list[tuple[str, float]]:
        """Return and clear the tools since the last call, those of ancestors included.

        Many clients make a call in a task or job of its own, whose spawner ran the tools.
        """
        taken = self._take_interceptions() if self.interceptions else []
        for reference in self.ancestors:
            ancestor = reference()
            if ancestor is not None and ancestor.interceptions:
                taken = ancestor._take_interceptions() + taken
        return taken[-MAX_PARENTS:]

    def _take_interceptions(self) -> list[tuple[str, float]]:
        taken, self.interceptions = self.interceptions, ()
        return list(taken)

    def _add_interceptions(self, interceptions: Sequence[tuple[str, float]]) -> None:
        self.interceptions = [*self.interceptions, *interceptions][-MAX_PARENTS:]

    def _join_ancestors(self) -> None:
        """Before the first call, become a child of the live ancestor, which may wait for this thread."""
        thread = self
        while not thread.is_joined:
            thread.is_joined = True
            parent = thread._live_ancestor()
            if parent is None:
                return
            parent._add_child(thread)
            thread = parent

    def _live_ancestor(self) -> ProgramThread | None:
        """Return the nearest unfinished ancestor, else the furthest known one."""
        found: ProgramThread | None = None
        ancestors = self.ancestors
        while ancestors:
            known = [thread for reference in ancestors if (thread := reference()) is not None]
            for thread in known:
                if not thread.is_finished():
                    return thread
            if not known:
                break
            found = known[-1]
            ancestors = found.ancestors
        return found

    def _add_child(self, child: ProgramThread) -> None:
        self._keep_child(child)
        if len(self.children) > MAX_PARENTS:
            self._absorb_finished()
        while len(self.children) > MAX_PARENTS:
            # A call cannot list more parents, and keeping more children would be a leak.
            self.is_truncated = True
            _take_first(self.children)

    def _keep_child(self, child: ProgramThread) -> None:
        # setdefault: two threads may add the first ones at once.
        children = self.children or vars(self).setdefault("children", deque())
        children.append(child)


def _take_first(children: deque[ProgramThread] | tuple[()]) -> ProgramThread | None:
    """Remove a child, which nobody else can take then; None if others have taken all."""
    try:
        return children.popleft() if children else None
    except IndexError:
        return None


def _given_name(carrier: Any) -> str:
    """Return the name of a task or `threading.Thread`; empty if Python or a library has made it up."""
    # A task has a method, a thread an attribute.
    name = carrier.get_name() if hasattr(carrier, "get_name") else getattr(carrier, "name", None)
    return name if type(name) is str and not _is_made_up(name) else ""


def _is_made_up(name: str) -> bool:
    """Return whether Python has numbered it, or a library such as AnyIO has named it after a function."""
    if name.startswith(NUMBERED):
        return name.partition("-")[2].partition(" ")[0].isdigit()
    module, _, function = name.partition(".")
    return "<locals>" in name or (module in sys.modules and function.replace(".", "").isidentifier())
