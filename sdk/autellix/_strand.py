"""Owns programs and their strands: what a line of control is, which calls it depends on, how branches join.

Theory. A *strand* is one line of control inside one program: a thread, a task, a job, or the body of a
`with program(...)`.

- `frontier` is the set of calls that the strand's next call depends on: None if unknown, empty for a root.
  A call replaces it by itself. A child that has finished brings its own frontier in, instead of what it was
  spawned from, which is an ancestor of what it did and so implied.
- Thread ids are given at a strand's first call and returned when the strand is collected, so they stay
  small and no live sibling shares one. The free list is a plain list: a finalizer may run anywhere and must
  take no lock.
- What a program does in other processes carries a `Passport`; thread ids there start from a base that is
  the process's own.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections import namedtuple

from autellix_wire import MAX_PARENTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType
    from typing import Any, NamedTuple

    from autellix._backends import Backend
    from autellix._session import Session

MAX_ANCESTORS = 4
GUEST_NUMBERS = 4096
"""Thread ids that each other process of a program may use."""

if TYPE_CHECKING:

    class Passport(NamedTuple):
        """What a strand needs in another process; plain values, so that it can be pickled."""

        program_id: str
        name: str | None
        is_implicit: bool
        session_id: str | None
        frontier: tuple[str, ...] | None

    class Trail(NamedTuple):
        """Where a line of control has come to: its frontier, and the ancestors of it that it started from."""

        frontier: tuple[str, ...] | None
        inherited: tuple[str, ...] | None

else:
    # typing costs more than the whole import may.
    Passport = namedtuple("Passport", "program_id name is_implicit session_id frontier")
    Trail = namedtuple("Trail", "frontier inherited")


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
        "ends",
        "expected_calls",
        "expected_tokens",
        "free_numbers",
        "has_called",
        "is_guest",
        "is_implicit",
        "is_named_by_user",
        "lock",
        "name",
        "named_numbers",
        "origins",
        "program_id",
        "trail",
        "uses",
    )

    def __init__(
        self, name: str | None, program_id: str | None, *, is_implicit: bool = False, is_guest: bool = False
    ) -> None:
        self.name = name
        self.is_named_by_user = program_id is not None
        self.is_implicit = is_implicit
        """Whether nobody named it, as for a process or a web request: a framework's run is one of its own."""
        self.is_guest = is_guest
        """Whether another process owns the program, and ends it."""
        self.ends = True
        """Whether leaving its last scope ends it; else further turns follow."""
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
        self.trail: tuple[str, ...] | None = ()
        """What the last turn came to, for a program of several turns."""
        self.free_numbers: list[int] = []
        self.named_numbers: dict[str, int] = {}
        self._next_number = itertools.count(os.getpid() * GUEST_NUMBERS if self.is_guest else 0)

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

    def number_of(self, thread: str) -> int:
        """Return the thread id of a thread that the user has named; it stays taken."""
        with self.lock:
            number = self.named_numbers.get(thread)
            if number is None:
                number = self.named_numbers[thread] = self.take_number()
            return number


class Strand:
    """One line of control inside a program.

    Most strands, such as those of tasks, never call: what only few need is a default of the class.
    """

    previous: Strand | None = None
    """The scope that it was opened in, which comes back into force when it is closed."""
    holder: weakref.ref[Any] | None = None
    """The task or Thread object that it hangs on."""
    frame: FrameType | None = None
    """The generator that opened this scope, which holds only while that generator runs."""
    branch_point: Trail | None = None
    """Where its branches start while it spawns several together; None for where it has come to."""
    lineage: tuple[weakref.ref[Strand], ...] | None = None
    """The ancestors of its branches, made once."""
    children: Sequence[Strand] = ()
    interceptions: Sequence[tuple[str, float]] = ()
    """Tools that ran since the last call: name, seconds."""
    is_closed = False
    is_joined = False
    is_truncated = False
    _number: int | None = None
    _free_numbers: list[int] | None = None

    def __init__(
        self,
        program: Program,
        frontier: tuple[str, ...] | None,
        session: Session | None = None,
        ancestors: tuple[weakref.ref[Strand], ...] = (),
    ) -> None:
        self.program = program
        self.frontier = self.inherited = frontier
        self.session = session
        """The session that the user has opened around it; None for the process's own."""
        self.ancestors = ancestors
        """Who may wait for it one day, nearest first; several, for a short-lived one may be gone by then."""

    def make_lineage(self) -> tuple[weakref.ref[Strand], ...]:
        """Return the ancestors of this strand's branches, and keep them."""
        lineage = self.lineage = (weakref.ref(self), *self.ancestors[: MAX_ANCESTORS - 1])
        return lineage

    def stand_on(self, previous: Strand | None, number: int | None = None) -> Strand:
        """Make it a scope inside another one, with a certain thread id if there is one; return it."""
        self.previous = previous
        self._number = number
        return self

    def __del__(self) -> None:
        if self._free_numbers is not None and self._number is not None:
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

    def trail(self) -> Trail:
        """Return where this strand has come to, for those that wait for it by other ways than a join."""
        return Trail(self.gather(), self.inherited)

    def follow(self, trail: Trail) -> None:
        """Come after another line of control, of which a message or a result has arrived."""
        # Whoever waits for this strand comes after it as well, even if it makes no call of its own.
        self._join_family()
        with self.program.lock:
            self._follow(*trail)

    def _follow(self, frontier: tuple[str, ...] | None, inherited: tuple[str, ...] | None) -> None:
        implied = set(inherited or ()) - set(frontier or ())
        own = [call for call in self.frontier or () if call not in implied]
        own += [call for call in frontier or () if call not in own]
        self.is_truncated |= len(own) > MAX_PARENTS
        self.frontier = tuple(own[-MAX_PARENTS:])

    def _absorb_finished(self) -> None:
        running = []
        for child in self.children:
            if not child.is_finished():
                running.append(child)
                continue
            child._absorb_finished()
            running += child.children
            self.is_truncated |= child.is_truncated
            self._follow(child.frontier, child.inherited)
            if child.interceptions:
                self._keep(child.take_interceptions())
        self.children = running[-MAX_PARENTS:]

    def advance(self, call_id: str) -> tuple[str, ...] | None:
        """Record that the strand makes this call; return the calls it depends on."""
        self._join_family()
        parents = self.gather()
        self.frontier = (call_id,)
        self.program.has_called = True
        return parents

    def intercept(self, name: str, seconds: float) -> None:
        """Record that a tool ran here, between two calls."""
        self._join_family()
        self._keep([(name, seconds)])

    def take_interceptions(self) -> list[tuple[str, float]]:
        """Return the tools that ran since the last call of this line of control, and forget them."""
        taken, self.interceptions = self.interceptions, ()
        return list(taken)

    def _keep(self, interceptions: Sequence[tuple[str, float]]) -> None:
        self.interceptions = [*self.interceptions, *interceptions][-MAX_PARENTS:]

    def collect_interceptions(self) -> list[tuple[str, float]]:
        """Take also what its spawners have not told: many clients make a call in a task or job of its own."""
        taken = self.take_interceptions()
        for reference in self.ancestors:
            ancestor = reference()
            if ancestor is not None and ancestor.interceptions:
                taken = ancestor.take_interceptions() + taken
        return taken[-MAX_PARENTS:]

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
        """Return the nearest ancestor that goes on, else the furthest that is known."""
        found: Strand | None = None
        ancestors = self.ancestors
        while ancestors:
            known = [strand for ancestor in ancestors if (strand := ancestor()) is not None]
            for strand in known:
                if not strand.is_finished():
                    return strand
            if not known:
                break
            found = known[-1]
            ancestors = found.ancestors
        return found

    def _add_child(self, child: Strand) -> None:
        if len(self.children) >= MAX_PARENTS:
            self._absorb_finished()
        if len(self.children) >= MAX_PARENTS:
            # More could not be listed as parents anyway; keeping them would be a leak.
            self.is_truncated = True
            self.children = self.children[1:]
        self.children = [*self.children, child]
