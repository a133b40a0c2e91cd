"""Owns who is calling: programs, their strands of control, and the link from a strand to those it spawned.

Theory. A *strand* is one line of control inside one program: a thread, a task, an executor's job, or the
body of a `with program(...)`. The strand in force hangs on its *holder*: the asyncio task that runs, else
the operating system's thread. Nothing is copied at a switch between tasks, so an `await` costs nothing.

- `with program(...)` pushes a strand that remembers the one below; leaving marks it closed, and a look-up
  skips closed strands. So scopes may close in any order, and in another thread than the one that opened
  them.
- A spawn creates the child's strand from the spawner's, with the calls that the child depends on. A task
  carries it as an attribute. A thread carries it on its Thread object, and pulls it at its first look-up.
- `frontier` is the set of calls that the strand's next call depends on: None if unknown, empty for a root.
  A call replaces it by itself. A child that has finished brings its own frontier in, instead of what it was
  spawned from.
- Thread ids are given at a strand's first call and returned when the strand is collected, so they stay
  small and no live sibling shares one. The free list is a plain list: a finalizer may run anywhere and must
  take no lock.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import weakref

from autellix_wire import MAX_PARENTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from autellix._backends import Backend

ATTRIBUTE = "_autellix_strand"
"""The attribute that carries the strand on a task or on a Thread object."""


class Ids:
    """Makes ids that are unique among processes: a random prefix per process, then a counter."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Take another prefix: a forked child must not continue its parent's numbers."""
        self._prefix = os.urandom(8).hex()
        self._numbers = itertools.count(1)

    def make(self, kind: str) -> str:
        """Return the next id, such as `call-<prefix>-<number>`."""
        return f"{kind}-{self._prefix}-{next(self._numbers)}"


ids = Ids()


class Program:
    """One run of an agent: what its calls have in common."""

    __slots__ = (
        "_next_number",
        "calls_made",
        "expected_calls",
        "expected_tokens",
        "free_numbers",
        "has_called",
        "is_implicit",
        "is_named_by_user",
        "lock",
        "name",
        "origins",
        "program_id",
        "uses",
    )

    def __init__(self, name: str | None, program_id: str | None, *, is_implicit: bool = False) -> None:
        self.name = name
        self.is_named_by_user = program_id is not None
        self.is_implicit = is_implicit
        self.uses = 0
        self.program_id = program_id or ids.make("program")
        self.expected_calls: int | None = None
        self.expected_tokens: int | None = None
        self._start()

    def _start(self) -> None:
        self.lock = threading.Lock()
        self.has_called = False
        self.calls_made = 0
        self.origins: set[Backend] = set()
        self.free_numbers: list[int] = []
        self._next_number = itertools.count()

    def renew(self) -> None:
        """Become the forked child's own program; an id that the user chose stays the user's choice."""
        if not self.is_named_by_user:
            self.program_id = ids.make("program")
        self._start()

    def take_number(self) -> int:
        """Return a thread id that no live strand of this program has."""
        try:
            return self.free_numbers.pop()
        except IndexError:
            return next(self._next_number)


class Strand:
    """One line of control inside a program."""

    __slots__ = (
        "__weakref__",
        "_free_numbers",
        "_number",
        "children",
        "frontier",
        "holder",
        "inherited",
        "is_closed",
        "is_joined",
        "is_truncated",
        "parent",
        "previous",
        "program",
    )

    def __init__(
        self,
        program: Program,
        frontier: tuple[str, ...] | None,
        *,
        parent: weakref.ref[Strand] | None = None,
        previous: Strand | None = None,
    ) -> None:
        self.program = program
        self.frontier = frontier
        self.inherited = frontier
        self.parent = parent
        self.previous = previous
        self.holder: weakref.ref[Any] | None = None
        self.children: list[Strand] = []
        self.is_closed = False
        self.is_joined = False
        self.is_truncated = False
        self._number: int | None = None

    def __del__(self) -> None:
        if self._number is not None:
            self._free_numbers.append(self._number)

    @property
    def thread_id(self) -> int:
        """The strand's number inside its program, taken at the first use."""
        if self._number is None:
            self._number = self.program.take_number()
            # Remembered, because a forked child's program starts another list.
            self._free_numbers = self.program.free_numbers
        return self._number

    def is_finished(self) -> bool:
        """Tell whether this strand makes no further call."""
        if self.is_closed:
            return True
        if self.holder is None:
            return False
        holder = self.holder()
        if holder is None:
            return True
        return bool(holder.done() if hasattr(holder, "done") else not holder.is_alive())

    def gather(self) -> tuple[str, ...] | None:
        """Bring in the calls of finished children, and return the frontier."""
        if self.children:
            with self.program.lock:
                self._absorb_finished()
        return self.frontier

    def _absorb_finished(self) -> None:
        running = []
        for child in self.children:
            if not child.is_finished():
                running.append(child)
                continue
            child._absorb_finished()
            running += child.children
            # What the child was spawned from is an ancestor of what it did: it is implied.
            implied = set(child.inherited or ())
            own = [call for call in self.frontier or () if call not in implied]
            own += [call for call in child.frontier or () if call not in own]
            self.is_truncated |= child.is_truncated or len(own) > MAX_PARENTS
            self.frontier = tuple(own[-MAX_PARENTS:])
        self.children = running[-MAX_PARENTS:]

    def advance(self, call_id: str) -> tuple[str, ...] | None:
        """Record that the strand makes this call; return the calls it depends on."""
        self._join_family()
        parents = self.gather()
        self.frontier = (call_id,)
        self.program.has_called = True
        return parents

    def _join_family(self) -> None:
        """At the first call, tell the live ancestors: each may wait for the strand below it one day."""
        strand = self
        while not strand.is_joined:
            strand.is_joined = True
            parent = strand._live_ancestor()
            if parent is None:
                return
            with parent.program.lock:
                parent._add_child(strand)
            strand = parent

    def _live_ancestor(self) -> Strand | None:
        parent = None if self.parent is None else self.parent()
        while parent is not None and parent.is_finished() and parent.parent is not None:
            parent = parent.parent()
        return parent

    def _add_child(self, child: Strand) -> None:
        if len(self.children) >= MAX_PARENTS:
            self._absorb_finished()
        if len(self.children) >= MAX_PARENTS:
            # More could not be listed as parents anyway; keeping them would be a leak.
            self.is_truncated = True
            del self.children[0]
        self.children.append(child)


class Holders:
    """The state of this process: where the strands in force hang."""

    def __init__(self) -> None:
        self.local = threading.local()
        self.implicit = Program(None, None, is_implicit=True)
        self.explicit: dict[str, Program] = {}
        self.lock = threading.Lock()
        self.running_loop: Any = None
        self.current_task: Any = None


_state = Holders()


def watch_asyncio() -> None:
    """Look strands up on tasks from now on; called when asyncio is loaded."""
    _state.current_task = sys.modules["asyncio.tasks"].current_task
    _state.running_loop = sys.modules["asyncio.events"]._get_running_loop


def _task() -> Any:
    """Return the task that runs in this thread, if any."""
    if _state.running_loop is None:
        return None
    loop = _state.running_loop()
    return None if loop is None else _state.current_task(loop)


def _thread() -> threading.Thread | None:
    # Not current_thread(): for a foreign thread that would register a dummy for ever.
    return threading._active.get(threading.get_ident())  # type: ignore[attr-defined, no-any-return]


def top() -> Strand | None:
    """Return the open strand that hangs on the running task or thread, if there is one."""
    task = _task()
    if task is not None:
        strand: Strand | None = getattr(task, ATTRIBUTE, None)
        if strand is None and (strand := getattr(_state.local, "pending", None)) is not None:
            # An eager task runs its first step inside create_task, before anyone could link it.
            adopt(task, strand)
    else:
        strand = getattr(_state.local, "strand", None) or getattr(_thread(), ATTRIBUTE, None)
    if strand is not None and strand.is_closed:
        while strand is not None and strand.is_closed:
            strand = strand.previous
        swap(strand)
    return strand


def swap(strand: Strand | None) -> Strand | None:
    """Hang a strand on the running task or thread; return what hung there."""
    task = _task()
    if task is not None:
        before: Strand | None = getattr(task, ATTRIBUTE, None)
        setattr(task, ATTRIBUTE, strand)
        return before
    before = getattr(_state.local, "strand", None)
    _state.local.strand = strand
    return before


def current_strand() -> Strand:
    """Return the strand in force; outside every scope that is one of the implicit program."""
    strand = top()
    if strand is None:
        implicit = _state.implicit
        # Before the program's first call every strand is a root; later nobody knows what this one waited for.
        strand = Strand(implicit, None if implicit.has_called else ())
        swap(strand)
    return strand


def fork() -> Strand:
    """Make the strand of a branch that the running strand is about to spawn."""
    parent = current_strand()
    return Strand(parent.program, parent.gather(), parent=weakref.ref(parent))


def spawning(strand: Strand | None) -> Strand | None:
    """Announce the strand of the task that is being created; return the announcement it replaces."""
    before: Strand | None = getattr(_state.local, "pending", None)
    _state.local.pending = strand
    return before


def adopt(holder: Any, strand: Strand | None) -> None:
    """Hang a spawned strand on its task or Thread object, unless an eager first step has done so."""
    if strand is not None and getattr(holder, ATTRIBUTE, None) is None:
        setattr(holder, ATTRIBUTE, strand)
        strand.holder = weakref.ref(holder)


def open_program(name: str | None, program_id: str | None) -> Program:
    """Return the program to enter: the live one of this id, else a fresh one."""
    with _state.lock:
        program = _state.explicit.get(program_id) if program_id else None
        if program is None:
            program = Program(name, program_id)
            _state.explicit[program.program_id] = program
        program.uses += 1
        return program


def close_program(program: Program) -> bool:
    """Leave a program; tell whether this was its last use in the process."""
    with _state.lock:
        program.uses -= 1
        if program.uses == 0:
            _state.explicit.pop(program.program_id, None)
        return program.uses == 0


def set_mute(is_mute: bool) -> bool:
    """Let threads that this thread starts inherit nothing, or something again; return what was set before."""
    before: bool = getattr(_state.local, "is_mute", False)
    _state.local.is_mute = is_mute
    return before


def is_mute() -> bool:
    """Tell whether threads started by this thread inherit nothing."""
    return getattr(_state.local, "is_mute", False)


def after_fork_in_child() -> None:
    """Give the child its own ids; locks that another thread held at the fork are replaced."""
    ids.renew()
    _state.lock = threading.Lock()
    for program in (_state.implicit, *_state.explicit.values()):
        program.renew()
    _state.explicit = {program.program_id: program for program in _state.explicit.values()}
    strand = top()
    while strand is not None:
        # The parent's calls and threads are not part of the child's program.
        strand.frontier, strand.children, strand.parent, strand._number = (), [], None, None
        strand = strand.previous
