"""Makes branches of the running program thread, for tasks, threads and functions that run elsewhere."""

from __future__ import annotations

from weakref import ref

from autellix._faults import safely
from autellix._open_scopes import Hold
from autellix._programs import generators
from autellix._programs.registry import programs
from autellix._programs.running import (
    ATTRIBUTE,
    attach_new,
    find_running_thread,
    is_linked,
    running_thread,
    state,
    switch_to,
)
from autellix._programs.thread import ProgramThread
from autellix._propagation import propagation
from autellix._sessions.keeper import keeper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, TypeVar

    from autellix._programs.program import ClientProgram
    from autellix._sessions.session import ClientSession

    T = TypeVar("T")


def new_branch() -> ProgramThread | None:
    """Return a new branch of the running program thread; None while the client is switched off."""
    return running_thread().branch() if propagation.is_on else None


def note_task(task: Any, program: ClientProgram, session: ClientSession | None) -> None:
    """Note a task: its program, and the session of the user around it, stay open until it is done."""
    if (tasks := program.scopes.tasks) is not None:
        tasks[id(task)] = ref(task)
    if session is not None:
        task.add_done_callback(Hold(keeper, session))


def holds_for_job(thread: ProgramThread) -> tuple[Hold, ...]:
    """Return what keeps a thread's program, and the session of the user around it, open."""
    program = () if thread.program is programs.implicit else (Hold(programs, thread.program),)
    return program if thread.session is None else (*program, Hold(keeper, thread.session))


def as_job(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is submitted once, as a job of the running program thread."""
    thread = new_branch()
    return function if thread is None else BranchCall(thread, function, holds_for_job(thread))


def link(carrier: Any) -> None:
    """Attach the propagation context of a branch to a `threading.Thread` that has not started."""
    if not is_linked(carrier):
        link_task(carrier, is_work=False)


def link_task(carrier: Any, is_work: bool = True) -> None:
    """Attach the propagation context of a branch to a new task, which is work of its program."""
    if not propagation.is_on:
        return
    thread = None
    if state.running_loop is not None and not generators.open_scopes:
        # Every task that a program creates passes here: the usual case, inside a task, is looked up in place.
        loop = state.running_loop()
        task = None if loop is None else state.current_task(loop)
        if task is not None:
            thread = getattr(task, ATTRIBUTE, None)
    if (
        type(thread) is not ProgramThread
        or thread.is_closed
        or (program := thread.program).has_ended
        or program.end_signal is not None
    ):
        thread = running_thread()
        program = thread.program
    if thread.children or thread.branch_point is not None:
        frontier = thread.branch_frontier()
    else:
        frontier = thread.frontier
    session = thread.session
    carrier._autellix_thread = (program, frontier, session, thread.lineage or thread.make_lineage())
    if is_work:
        note_task(carrier, program, session)


def create_task(create: Callable[[], T], *, follows: bool = True) -> T:
    """Create a task that may run its first step at once, as a branch of the running program thread."""
    thread = safely(new_branch) if follows else None
    before = announce(thread)
    try:
        task = create()
    finally:
        announce(before)
    if thread is not None:
        safely(attach_new, task, thread)
        safely(note_task, task, thread.program, thread.session)
    return task


def announce(thread: ProgramThread | None) -> ProgramThread | None:
    """Set the program thread of the task that is being created; return the one it replaces."""
    before: ProgramThread | None = getattr(state.local, "announced", None)
    state.local.announced = thread
    return before


class FanOut:
    """A `with` block that spawns branches together: none depends on another, however soon that finishes."""

    __slots__ = ("_before", "_thread")

    def __enter__(self) -> None:
        self._thread: ProgramThread | None = None
        safely(self._begin)

    def _begin(self) -> None:
        thread = running_thread()
        self._before, thread.branch_point = thread.branch_point, thread.progress()
        self._thread = thread

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._thread.branch_point = self._before


class BranchCall:
    """A function that is submitted once and runs in a program thread of its own, on any worker."""

    __slots__ = ("function", "holds", "innermost", "thread")

    def __init__(
        self, thread: ProgramThread, function: Callable[..., Any], holds: tuple[Hold, ...] = ()
    ) -> None:
        self.thread = thread
        self.innermost: ProgramThread | None = thread
        """The scope in which the function has ended."""
        self.function = function
        self.holds = holds
        """Until it has run, or is dropped."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function, then restore the worker's program thread."""
        before = safely(switch_to, self.thread)
        try:
            return self.function(*args, **kwargs)
        finally:
            self.thread.is_closed = True
            self.innermost = safely(switch_to, before)
            self.holds = ()

    def hold(self) -> None:
        """Let the scopes that the function has left open hold in the running task."""
        innermost = self.innermost
        while innermost is not None and innermost.is_over():
            innermost = innermost.previous
        scope = innermost
        while scope is not None and scope.previous is not self.thread:
            scope = scope.previous
        if scope is not None:
            scope.previous = find_running_thread()
            switch_to(innermost)

    def __getattr__(self, name: str) -> Any:
        # An event loop names a slow callback by these.
        if name in ("__name__", "__qualname__", "__wrapped__"):
            return self.function if name == "__wrapped__" else getattr(self.function, name)
        raise AttributeError(name)

    def __repr__(self) -> str:
        return repr(self.function)


class BranchFunction:
    """A function of which each run is a branch of its own; a pool drops it after the last one."""

    __slots__ = ("function", "holds", "origin")

    def __init__(self, origin: ProgramThread, function: Callable[..., Any]) -> None:
        self.origin = origin
        self.function = function
        self.holds = holds_for_job(origin)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        origin = self.origin
        if len(args) == 1 and isinstance(args[0], BranchItem):
            origin, args = args[0].origin, (args[0].value,)
        return BranchCall(origin.sibling(), self.function)(*args, **kwargs)


class BranchItem:
    """An item for a function of branches, and the branch that its run is a sibling of."""

    __slots__ = ("origin", "value")

    def __init__(self, origin: ProgramThread, value: Any) -> None:
        self.origin = origin
        self.value = value


class BranchItems:
    """An iterator that another thread consumes, and that runs in a program thread of its own."""

    __slots__ = ("items", "thread", "wrap")

    def __init__(self, thread: ProgramThread, items: Iterator[Any], wrap: type[BranchItem] | None) -> None:
        self.thread = thread
        # A fan-out: no item follows the work on an earlier one.
        thread.branch_point = thread.progress()
        self.items = items
        self.wrap = wrap
        """What each item is wrapped in, if its run follows the calls that made it."""

    def __iter__(self) -> BranchItems:
        return self

    def __next__(self) -> Any:
        before = safely(switch_to, self.thread)
        try:
            value = next(self.items)
        except BaseException:
            self.thread.is_closed = True
            raise
        finally:
            safely(switch_to, before)
        return value if self.wrap is None else self.wrap(self.thread.branch(), value)


generators.add_boundary(BranchCall.__call__.__code__)
generators.add_boundary(BranchItems.__next__.__code__)
