"""Finds the program thread that is running.

Theory. A program thread is attached to its *carrier*: the task or greenlet that runs, else the operating
system's thread. A switch between tasks copies nothing, so an `await` costs nothing.

- `with program(...)` enters a scope that remembers the previous one. Leaving marks it closed, and a look-up
  skips closed scopes. So scopes may close in any order, and in another thread than the one that opened them.
- A spawn attaches a propagation context to the new task or `threading.Thread`. It becomes a program thread at
  the first look-up; most tasks never look it up.
- A thread whose program has ended counts as left: it may be a worker that serves another program.
- A greenlet is a thread; one that nobody has linked is in no program until it enters a scope.
"""

from __future__ import annotations

import sys
import threading
import weakref

from autellix._ids import ids
from autellix._programs import generators
from autellix._programs.registry import programs
from autellix._programs.thread import ProgramThread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from autellix._programs.program import ClientProgram
    from autellix._sessions.session import ClientSession

    PropagationContext = tuple[
        ClientProgram, tuple[str, ...] | None, ClientSession | None, tuple[weakref.ref[ProgramThread], ...]
    ]
    """The arguments of the ProgramThread to make."""

ATTRIBUTE = "_autellix_thread"
"""The attribute of a task or `threading.Thread` that holds its program thread or propagation context."""


class RunningState:
    """The inputs of a look-up: attributes of operating system threads, and functions of loaded libraries."""

    def __init__(self) -> None:
        self.local = threading.local()
        self.running_loop: Any = None
        self.current_task: Any = None
        self.trio: Any = None
        """Trio's own state of each thread, once it is loaded; it has the running task."""
        self.trio_carriers: weakref.WeakKeyDictionary[Any, TrioCarrier] = weakref.WeakKeyDictionary()
        self.current_greenlet: Any = None


class TrioCarrier:
    """Stands for a task of trio, which takes no attributes of ours."""

    def __init__(self, task: Any) -> None:
        self._task = weakref.ref(task)

    def done(self) -> bool:
        """Return whether the task can run no more."""
        return getattr(self.get_coro(), "cr_frame", None) is None

    def get_coro(self) -> Any:
        """Return its coroutine."""
        return getattr(self._task(), "coro", None)


def trio_carrier(task: Any) -> TrioCarrier:
    """Return what a task of trio has instead of our attribute."""
    carrier = state.trio_carriers.get(task)
    if carrier is None:
        carrier = state.trio_carriers[task] = TrioCarrier(task)
    return carrier


state = RunningState()


def _task() -> Any:
    """Return the running task or greenlet; None for the code of a thread itself."""
    if state.trio is not None and (task := getattr(state.trio, "task", None)) is not None:
        return trio_carrier(task)
    if state.running_loop is not None and (loop := state.running_loop()) is not None:
        # Before greenlets: libraries run synchronous code in greenlets of a task.
        return state.current_task(loop)
    if state.current_greenlet is not None:
        greenlet = state.current_greenlet()
        # The first greenlet of a thread is the thread.
        return None if greenlet.parent is None else greenlet
    return None


def running_thread() -> ProgramThread:
    """Return the running program thread; outside of all scopes, a thread of the implicit program."""
    thread = find_running_thread()
    if thread is None:
        thread = thread_outside()
        switch_to(thread)
    return thread


def thread_outside() -> ProgramThread:
    """Return a new thread of the implicit program."""
    implicit = programs.implicit
    # Before the program's first call every thread is a root; later its dependencies are unknown.
    return ProgramThread(implicit, None if implicit.has_called else ())


def find_running_thread() -> ProgramThread | None:
    """Return the running program thread, or None outside of all scopes."""
    attached = _attached()
    if generators.open_scopes:
        owned = _owned(_task(), sys._getframe(1))
        if owned is not None and not _is_within(attached, owned):
            return owned
    return attached


def _owned(task: Any, frame: FrameType | None) -> ProgramThread | None:
    """Return the scope of the innermost generator around a frame of the running task or greenlet."""
    coroutine = task.get_coro() if hasattr(task, "get_coro") else None
    return generators.innermost(frame, getattr(coroutine, "cr_frame", None))


def _attached() -> ProgramThread | None:
    """Return the open program thread of the running task, greenlet or operating system thread."""
    task = _task()
    if task is None:
        # Not current_thread(): for a foreign thread it would register a dummy for ever.
        os_thread = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]
        thread = getattr(state.local, "thread", None) or thread_of(os_thread)
    elif (thread := thread_of(task)) is None:
        if state.current_greenlet is not None and hasattr(task, "gr_frame"):
            # In a program that gevent has patched, threads are greenlets.
            thread = thread_of(threading._active.get(id(task)))  # type: ignore[attr-defined]
        else:
            thread = getattr(state.local, "announced", None)
            # An eager task runs its first step inside create_task, before it can be linked.
            attach_new(task, thread)
    if thread is not None and thread.is_over():
        while thread is not None and (thread.is_over() or thread.frame is not None):
            thread = thread.previous
        switch_to(thread)
    return thread


def thread_of(carrier: Any) -> ProgramThread | None:
    """Return the program thread of a task or `threading.Thread`; make it from a propagation context."""
    found: ProgramThread | PropagationContext | None = getattr(carrier, ATTRIBUTE, None)
    if type(found) is not tuple:
        # A thread's class may answer for every attribute.
        return found if isinstance(found, ProgramThread) else None
    thread = ProgramThread(*found)
    attach(carrier, thread)
    return thread


def _is_within(thread: ProgramThread | None, scope: ProgramThread) -> bool:
    while thread is not None and thread is not scope:
        thread = thread.previous
    return thread is scope


def attach(carrier: Any, thread: ProgramThread) -> None:
    """Attach a program thread to a task or `threading.Thread`, in place of any other."""
    carrier._autellix_thread = thread
    thread.carrier = weakref.ref(carrier)


def is_linked(carrier: Any) -> bool:
    """Return whether a task or `threading.Thread` has a program thread or propagation context."""
    found = getattr(carrier, ATTRIBUTE, None)
    return found is not None and isinstance(found, tuple | ProgramThread)


def attach_new(carrier: Any, thread: ProgramThread | None) -> None:
    """Attach a program thread, unless an eager first step has attached one."""
    if thread is not None and not is_linked(carrier):
        attach(carrier, thread)


def switch_to(thread: ProgramThread | None) -> ProgramThread | None:
    """Run a program thread on the running task or operating system thread; return the one it replaces."""
    task = _task()
    if task is not None:
        before = thread_of(task)
        setattr(task, ATTRIBUTE, thread)
        return before
    before = getattr(state.local, "thread", None)
    state.local.thread = thread
    return before


def enter(scope: ProgramThread, frame: FrameType | None) -> None:
    """Enter a scope: in the generator that opens it at this frame, else in the task or thread."""
    owner = generators.owner_of(frame)
    if owner is not None:
        generators.open_scope(scope, owner)
        return
    switch_to(scope)
    if generators.FIXTURE_TASKS in sys.modules and generators.is_in_fixture(frame):
        # The tasks of the tests inherit from the thread.
        scope.previous, state.local.thread = getattr(state.local, "thread", None), scope


def leave(scope: ProgramThread) -> None:
    """Leave a scope, entered in any thread or task."""
    scope.is_closed = True
    if scope.frame is not None:
        generators.close_scope(scope.frame)


def after_fork_in_child() -> None:
    """Renew the child's ids, programs and threads."""
    thread = find_running_thread()
    ids.renew()
    programs.after_fork_in_child()
    while thread is not None:
        thread.after_fork_in_child()
        thread = thread.previous
