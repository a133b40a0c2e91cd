"""Owns where the strands in force hang, and their look-up.

Theory. The strand in force hangs on its *holder*: the asyncio task that runs, else the operating system's
thread. Nothing is copied at a switch between tasks, so an `await` costs nothing.

- `with program(...)` pushes a strand that remembers the one below; leaving marks it closed, and a look-up
  skips closed strands. So scopes may close in any order, and in another thread than the one that opened
  them.
- A scope that a generator opens belongs to the generator's frame, not to the thread: it is in force where
  that frame is on the stack, so it waits while the generator is suspended, whoever drives it, and its
  consumer never sees it. Looking it up walks the stack, but only while such scopes are open at all.
- A spawn creates the child's strand from the spawner's, with the calls that the child depends on. A task
  carries it as an attribute. A thread carries it on its Thread object, and pulls it at its first look-up.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import OrderedDict

from autellix._safely import safely
from autellix._strand import Passport, Program, Strand, ids

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, FrameType
    from typing import Any

    from autellix._session import Session

    Seed = tuple[Program, tuple[str, ...] | None, Session | None, tuple[weakref.ref[Strand], ...]]

ATTRIBUTE = "_autellix_strand"
"""The attribute that carries the strand on a task or on a Thread object."""
MAX_LASTING = 4096
"""How many programs between two turns are remembered."""
GENERATOR_FLAGS = 0x20 | 0x200
"""Of code objects: generators and async generators, but not coroutines."""
BOUNDARIES: set[CodeType] = set()
"""Code that runs a strand of its own on somebody else's stack: what lies further out does not count there."""
SCOPE_HELPERS = frozenset({"contextlib", "_pytest.fixtures"})
"""Modules that drive a generator for the sake of the scope it opens: that is for the code around it."""


class Holders:
    """The state of this process: where the strands in force hang."""

    def __init__(self) -> None:
        self.local = threading.local()
        self.implicit = Program(None, None, is_implicit=True)
        self.explicit: dict[str, Program] = {}
        self.lasting: OrderedDict[str, Program] = OrderedDict()
        self.frames: dict[FrameType, Strand] = {}
        self.lock = threading.Lock()
        self.running_loop: Any = None
        self.current_task: Any = None
        self.is_on = False
        """Whether the client is switched on; a patch that somebody has wrapped stays when it is not."""


_state = Holders()


def switch(is_on: bool) -> None:
    """Let patches do their work, or pass everything through."""
    _state.is_on = is_on


def is_on() -> bool:
    """Tell whether patches do their work."""
    return _state.is_on


def name_process(name: str | None, program_id: str | None) -> None:
    """Name the program that the process is without a word from its code."""
    implicit = _state.implicit
    implicit.name = name or implicit.name
    if program_id is not None:
        implicit.program_id, implicit.is_named_by_user = program_id, True
    # A framework's run belongs to a process that has been named.
    implicit.is_implicit = name is None and program_id is None


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
    """Return the open strand in force here, if there is one."""
    hung = _hung()
    if _state.frames:
        owned = _owned_by_frames(sys._getframe(1))
        if owned is not None and not _stands_on(hung, owned):
            return owned
    return hung


def _hung() -> Strand | None:
    """Return the open strand that hangs on the running task or thread."""
    task = _task()
    if task is not None:
        strand: Strand | None = strand_on(task)
        if strand is None and (strand := getattr(_state.local, "pending", None)) is not None:
            # An eager task runs its first step inside create_task, before anyone could link it.
            adopt(task, strand)
    else:
        strand = getattr(_state.local, "strand", None) or strand_on(_thread())
    if strand is not None and strand.is_closed:
        while strand is not None and (strand.is_closed or strand.frame is not None):
            strand = strand.previous
        swap(strand)
    return strand


def strand_on(holder: Any) -> Strand | None:
    """Return what hangs on a task or Thread object; a seed becomes a strand."""
    found: Strand | Seed | None = getattr(holder, ATTRIBUTE, None)
    if type(found) is not tuple:
        return found  # type: ignore[return-value]
    strand = Strand(*found)
    hang(holder, strand)
    return strand


def _owned_by_frames(frame: FrameType | None) -> Strand | None:
    """Return the scope of the innermost running generator that has one open, in this task or job."""
    task = _task()
    root = None if task is None else getattr(task.get_coro(), "cr_frame", None)
    while frame is not None:
        strand = _state.frames.get(frame)
        if strand is not None:
            while strand is not None and strand.is_closed:
                below = strand.previous
                strand = below if below is not None and below.frame is frame else None
            if strand is not None:
                return strand
        if frame is root or frame.f_code in BOUNDARIES:
            return None
        frame = frame.f_back
    return None


def _stands_on(strand: Strand | None, owned: Strand) -> bool:
    """Tell whether a strand was opened inside another, and so lies further inside than it."""
    while strand is not None and strand is not owned:
        strand = strand.previous
    return strand is owned


def owner_of(frame: FrameType | None) -> FrameType | None:
    """Return the generator that opens a scope at a frame, if it is one that suspends with the scope open.

    A generator that `contextlib` drives opens the scope for the code of its `with` statement.
    """
    while frame is not None:
        if frame.f_globals.get("__name__") in SCOPE_HELPERS:
            frame = frame.f_back
        elif not frame.f_code.co_flags & GENERATOR_FLAGS:
            return None
        elif frame.f_back is not None and frame.f_back.f_globals.get("__name__") in SCOPE_HELPERS:
            frame = frame.f_back
        else:
            return frame
    return None


def push(strand: Strand, frame: FrameType | None) -> None:
    """Put a scope in force: in the generator that opens it at this frame, else in the task or thread."""
    owner = owner_of(frame)
    if owner is None:
        swap(strand)
    else:
        strand.frame = owner
        _state.frames[owner] = strand


def pull(strand: Strand) -> None:
    """Take a scope out of force, wherever it was entered."""
    strand.is_closed = True
    frame = strand.frame
    if frame is not None:
        below = _state.frames.get(frame)
        while below is not None and below.is_closed:
            below = below.previous if below.previous is not None and below.previous.frame is frame else None
        if below is None:
            _state.frames.pop(frame, None)
        else:
            _state.frames[frame] = below


def swap(strand: Strand | None) -> Strand | None:
    """Hang a strand on the running task or thread; return what hung there."""
    task = _task()
    if task is not None:
        before = strand_on(task)
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


def fork() -> Strand | None:
    """Make the strand of a branch that the running strand is about to spawn; None while switched off."""
    return branch_of(current_strand()) if _state.is_on else None


def branch_of(parent: Strand) -> Strand:
    """Make the strand of a branch of this one."""
    lineage = parent.lineage or parent.make_lineage()
    return Strand(parent.program, _branch_frontier(parent), parent.session, lineage)


def _branch_frontier(parent: Strand) -> tuple[str, ...] | None:
    if parent.branch_point is not None:
        return parent.branch_point.frontier
    return parent.gather() if parent.children else parent.frontier


class Together:
    """A `with` block that only spawns: none of its branches waits for another, however soon that finishes."""

    __slots__ = ("_before", "_strand")

    def __enter__(self) -> None:
        self._strand: Strand | None = None
        safely(self._begin)

    def _begin(self) -> None:
        strand = current_strand()
        self._before, strand.branch_point = strand.branch_point, strand.trail()
        self._strand = strand

    def __exit__(self, *_: object) -> None:
        if self._strand is not None:
            self._strand.branch_point = self._before


def spawning(strand: Strand | None) -> Strand | None:
    """Announce the strand of the task that is being created; return the announcement it replaces."""
    before: Strand | None = getattr(_state.local, "pending", None)
    _state.local.pending = strand
    return before


def adopt(holder: Any, strand: Strand | None) -> None:
    """Hang a spawned strand on its task or Thread object, unless an eager first step has done so."""
    if strand is not None and getattr(holder, ATTRIBUTE, None) is None:
        hang(holder, strand)


def link(holder: Any) -> None:
    """Make a task or Thread object that has not begun a branch of the running strand, unless it is one.

    It gets a seed, which becomes a strand when the branch looks itself up: most tasks never do.
    """
    if not _state.is_on or getattr(holder, ATTRIBUTE, None) is not None:
        return
    strand = None
    if _state.running_loop is not None and not _state.frames:
        # Every task that a program creates passes here: the usual case, inside a task, is looked up in place.
        loop = _state.running_loop()
        task = None if loop is None else _state.current_task(loop)
        if task is not None:
            strand = getattr(task, ATTRIBUTE, None)
    if type(strand) is not Strand or strand.is_closed:
        strand = current_strand()
    if strand.children or strand.branch_point is not None:
        frontier = _branch_frontier(strand)
    else:
        frontier = strand.frontier
    lineage = strand.lineage or strand.make_lineage()
    holder._autellix_strand = (strand.program, frontier, strand.session, lineage)


def hang(holder: Any, strand: Strand) -> None:
    """Hang a strand on a task or Thread object, whatever hung there."""
    holder._autellix_strand = strand
    strand.holder = weakref.ref(holder)


def open_program(name: str | None, program_id: str | None, *, ends: bool = True) -> Program:
    """Return the program to enter: the one of this id, open or between two turns, else a fresh one."""
    with _state.lock:
        program = _state.explicit.get(program_id) if program_id else None
        if program is None and program_id is not None:
            program = _state.lasting.pop(program_id, None)
        if program is None:
            program = Program(name, program_id)
        program.ends = ends
        _state.explicit[program.program_id] = program
        program.uses += 1
        return program


def close_program(program: Program, trail: tuple[str, ...] | None) -> bool:
    """Leave a program; tell whether this was its end."""
    with _state.lock:
        program.uses -= 1
        if program.uses > 0:
            return False
        _state.explicit.pop(program.program_id, None)
        if program.ends:
            return not program.is_guest
        program.trail = trail
        _state.lasting[program.program_id] = program
        while len(_state.lasting) > MAX_LASTING:
            _state.lasting.popitem(last=False)
        return False


def end_lasting(program_id: str) -> Program | None:
    """Forget a program between two turns, because it is over; return it."""
    with _state.lock:
        return _state.lasting.pop(program_id, None)


def issue_passport(strand: Strand) -> Passport:
    """Write down what a branch of this strand in another process needs."""
    program = strand.program
    session_id = None if strand.session is None else strand.session.session_id
    frontier = _branch_frontier(strand)
    return Passport(program.program_id, program.name, program.is_implicit, session_id, frontier)


def admit(passport: Passport) -> Program:
    """Return the program of a passport, which another process owns."""
    with _state.lock:
        program = _state.explicit.get(passport.program_id)
        if program is None:
            program = Program(
                passport.name, passport.program_id, is_implicit=passport.is_implicit, is_guest=True
            )
            _state.explicit[program.program_id] = program
        program.uses += 1
        return program


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
    strand = top()
    ids.renew()
    _state.lock = threading.Lock()
    _state.lasting.clear()
    for program in (_state.implicit, *_state.explicit.values()):
        program.renew()
    _state.explicit = {program.program_id: program for program in _state.explicit.values()}
    while strand is not None:
        # The parent's calls and threads are not part of the child's program.
        strand.frontier, strand.children, strand.ancestors, strand._number = (), (), (), None
        strand.lineage = None
        strand.session = None
        strand = strand.previous
