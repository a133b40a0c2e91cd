"""Owns which calls an agent's next call depends on, told by the messages that it has handled.

Theory. AutoGen's runtime handles each message in a task of its own, so the lineage of tasks says nothing
about who waited for whom. Causality travels with the messages instead:

- A message carries the *past* of its sender: the calls that come directly before it, and ancestors of these.
- Handling a message is a *turn* of its recipient. It starts from the past of the message, joined with the
  past of what the agent has handled before: the agent's *line* in that program.
- Joining leaves out each call that the other side knows to be an ancestor of its own. So a manager that has
  waited for two branches passes both on, and one that has been told the same twice passes it on once.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, NamedTuple

from autellix.integration import Strand, Trail, current_strand, swap

if TYPE_CHECKING:
    from typing import Any

LINES = "_autellix_lines"
"""The attribute of an agent that holds its lines, by program id."""
MAX_KNOWN = 256
"""Ancestors remembered; an older one that turns up again would be listed as a parent once more."""
MAX_LINES = 64
"""Programs that an agent remembers its part in."""


class Past(NamedTuple):
    """The calls behind a line of control."""

    frontier: tuple[str, ...] | None = ()
    """Those that its next call depends on; None if unknown."""
    known: tuple[str, ...] = ()
    """The frontier and ancestors of it, oldest first."""

    def joined(self, other: Past) -> Past:
        """Return the past of somebody who comes after both."""
        if other is self or not other.frontier:
            return self if self.frontier or other.frontier is not None else other
        if not self.frontier or self.is_before(other):
            return other
        if other.is_before(self):
            return self
        ours, theirs = set(self.frontier), set(other.frontier)
        frontier = tuple(call for call in self.frontier if call in theirs or call not in other.known)
        frontier += tuple(call for call in other.frontier if call not in ours and call not in self.known)
        return Past(frontier, tuple(dict.fromkeys(self.known + other.known))[-MAX_KNOWN:])

    def is_before(self, other: Past) -> bool:
        """Tell whether the other one is known to come after all of this, or is the same."""
        return all(call in other.known for call in self.frontier or ())


class _Memory:
    """What a strand knows besides its frontier."""

    __slots__ = ("base", "borrower", "past")

    def __init__(self, past: Past, base: tuple[str, ...]) -> None:
        self.past = past
        """As others were told of it last."""
        self.base = base
        """Ancestors of what it started from; every branch of it comes after them, too."""
        self.borrower: weakref.ref[Any] | None = None
        """The task that goes on as its thread."""


_memories: weakref.WeakKeyDictionary[Strand, _Memory] = weakref.WeakKeyDictionary()


def _memory_of(strand: Strand) -> _Memory:
    memory = _memories.get(strand)
    if memory is None:
        memory = _memories[strand] = _memory_at_start(strand)
    return memory


def _memory_at_start(strand: Strand) -> _Memory:
    ancestors = (ancestor() for ancestor in strand.ancestors)
    above = next((known for known in map(_memories.get, filter(None, ancestors)) if known), None)
    if above is not None and above.past.frontier == strand.inherited:
        return _Memory(above.past, above.past.known)
    base = () if above is None else above.base
    return _Memory(Past(strand.inherited, base + (strand.inherited or ())), base)


def past_of(strand: Strand) -> Past:
    """Return the past of whoever comes after this strand's doings so far."""
    frontier = strand.gather()
    memory = _memory_of(strand)
    past = memory.past
    if past.frontier != frontier:
        # What was in the frontier before is an ancestor now.
        fresh = tuple(call for call in frontier or () if call not in past.known)
        memory.past = Past(frontier, (past.known + fresh)[-MAX_KNOWN:])
    return memory.past


def follow(strand: Strand, past: Past) -> None:
    """Let a strand come after a past that it has been told of."""
    here = past_of(strand)
    joined = here.joined(past)
    if joined is not here and joined.frontier:
        strand.follow(Trail(joined.frontier, here.frontier))
        _memory_of(strand).past = joined


class Turn(Strand):
    """A strand that shares the thread id of another one: its lender's."""

    lender: Strand

    @property
    def thread_id(self) -> int:
        """The number that the lender has in the program."""
        return self.lender.thread_id


def turn_of(origin: Strand, lender: Strand) -> Turn:
    """Make a strand in the program and session of another one, on the thread of a lender."""
    turn = Turn(origin.program, None if origin.frontier is None else (), session=origin.session)
    turn.lender = lender
    return turn


def lend_thread(maker: Strand, task: Any) -> Turn | None:
    """Return a strand for a task that goes on as its maker's thread; None while another one does."""
    memory = _memory_of(maker)
    other = None if memory.borrower is None else memory.borrower()
    if other is not None and not other.done():
        return None
    memory.borrower = weakref.ref(task)
    return turn_of(maker, maker)


def start(strand: Strand, *pasts: Past) -> None:
    """Let a strand that has not done anything yet begin after these pasts."""
    for past in pasts:
        follow(strand, past)
    strand.inherited = strand.frontier
    memory = _memory_of(strand)
    memory.base = memory.past.known


class Line:
    """What one agent has done in one program so far."""

    __slots__ = ("past", "strand")

    def __init__(self, strand: Strand) -> None:
        self.strand = strand
        """Holds the thread id of the agent, and gives it back when the agent is collected."""
        self.past = Past()


def line_of(agent: object, program_id: str) -> Line | None:
    """Return an agent's line in a program, if it has handled a message there."""
    lines: dict[str, Line] = vars(agent).get(LINES, {})
    return lines.get(program_id)


def _ensure_line(agent: object, strand: Strand) -> Line:
    lines: dict[str, Line] = vars(agent).setdefault(LINES, {})
    program_id = strand.program.program_id
    line = lines.get(program_id)
    if line is None:
        while len(lines) >= MAX_LINES:
            del lines[next(iter(lines))]
        line = lines[program_id] = Line(Strand(strand.program, ()))
    return line


class Handling:
    """One message in the hands of one agent: a turn that is in force until `finish`."""

    __slots__ = ("_arrival", "_before", "_line", "_turn")

    def __init__(self, agent: object) -> None:
        self._arrival = current_strand()
        self._line = _ensure_line(agent, self._arrival)
        self._turn = turn_of(self._arrival, self._line.strand)
        self._turn.previous = self._arrival
        start(self._turn, past_of(self._arrival), self._line.past)
        self._before = swap(self._turn)

    def finish(self) -> None:
        """Note what the agent has come to, and let the one who waits for it follow."""
        self._turn.is_closed = True
        swap(self._before)
        past = past_of(self._turn)
        self._line.past = self._line.past.joined(past)
        follow(self._arrival, past)


def catch_up(agent: object) -> None:
    """Let the turn in force follow what its agent has handled while the turn waited to begin."""
    turn = current_strand()
    line = line_of(agent, turn.program.program_id)
    if line is not None and isinstance(turn, Turn) and turn.lender is line.strand:
        start(turn, line.past)
