"""Derives from messages which calls an agent's next call depends on.

Theory. AutoGen's runtime handles each message in a task of its own, so the ancestors of a task do not show
which agent waited for which. Causality travels with the messages instead:

- A message carries the *past* of its sender: the calls directly before it, and ancestors of these.
- Handling a message is a *turn* of its recipient. It starts from the past of the message, joined with the
  past of all that the agent has handled before in that program: the agent's *history*.
- A join leaves out each call that the other side knows as an ancestor. So a manager that has waited for two
  branches passes both on, and one that hears of the same calls twice passes them on once.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, NamedTuple

from autellix.integration import ProgramThread, Progress, running_thread, safely, switch_to

if TYPE_CHECKING:
    from typing import Any

ATTRIBUTE = "_autellix_histories"
"""The attribute of an agent that holds its histories, by program id."""
MAX_KNOWN = 256
"""Ancestors kept; an older one that returns would be listed as a parent once more."""
MAX_HISTORIES = 64


class CausalPast(NamedTuple):
    """The calls before a point of a program."""

    frontier: tuple[str, ...] | None = ()
    """The calls that the next call depends on; None if unknown."""
    known: tuple[str, ...] = ()
    """The frontier and its ancestors, oldest first."""

    def joined(self, other: CausalPast) -> CausalPast:
        """Return the past of a point after both."""
        if other is self or not other.frontier:
            return self if self.frontier or other.frontier is not None else other
        if not self.frontier or self.is_before(other):
            return other
        if other.is_before(self):
            return self
        ours, theirs = set(self.frontier), set(other.frontier)
        frontier = tuple(call for call in self.frontier if call in theirs or call not in other.known)
        frontier += tuple(call for call in other.frontier if call not in ours and call not in self.known)
        return CausalPast(frontier, tuple(dict.fromkeys(self.known + other.known))[-MAX_KNOWN:])

    def is_before(self, other: CausalPast) -> bool:
        """Return whether the other past is known to include this one."""
        return all(call in other.known for call in self.frontier or ())


class _Memory:
    """What is known of a thread besides its frontier."""

    __slots__ = ("base", "borrower", "past")

    def __init__(self, past: CausalPast, base: tuple[str, ...]) -> None:
        self.past = past
        """As last reported to others."""
        self.base = base
        """Ancestors of its starting point, and so of every branch of it."""
        self.borrower: weakref.ref[Any] | None = None
        """The task that runs as this thread."""


_memories: weakref.WeakKeyDictionary[ProgramThread, _Memory] = weakref.WeakKeyDictionary()


def _memory_of(thread: ProgramThread) -> _Memory:
    memory = _memories.get(thread)
    if memory is None:
        memory = _memories[thread] = _first_memory(thread)
    return memory


def _first_memory(thread: ProgramThread) -> _Memory:
    ancestors = (ancestor() for ancestor in thread.ancestors)
    above = next((known for known in map(_memories.get, filter(None, ancestors)) if known), None)
    if above is not None and above.past.frontier == thread.inherited:
        return _Memory(above.past, above.past.known)
    base = () if above is None else above.base
    return _Memory(CausalPast(thread.inherited, base + (thread.inherited or ())), base)


def past_of(thread: ProgramThread) -> CausalPast:
    """Return the past of a point after all that this thread has done so far."""
    frontier = thread.join_finished()
    memory = _memory_of(thread)
    past = memory.past
    if past.frontier != frontier:
        # The previous frontier is among the ancestors now.
        fresh = tuple(call for call in frontier or () if call not in past.known)
        memory.past = CausalPast(frontier, (past.known + fresh)[-MAX_KNOWN:])
    return memory.past


def follow(thread: ProgramThread, past: CausalPast) -> None:
    """Let a thread's next call depend on a past."""
    here = past_of(thread)
    joined = here.joined(past)
    if joined is not here and joined.frontier:
        thread.follow(Progress(joined.frontier, here.frontier))
        _memory_of(thread).past = joined


class TurnThread(ProgramThread):
    """A thread that uses the thread id of another one, its lender."""

    lender: ProgramThread

    @property
    def thread_id(self) -> int:
        """The lender's number in the program."""
        return self.lender.thread_id


def turn_of(origin: ProgramThread, lender: ProgramThread) -> TurnThread:
    """Return a thread in the program and session of another one, with the id of a lender."""
    turn = TurnThread(origin.program, None if origin.frontier is None else (), session=origin.session)
    turn.lender, turn.name = lender, lender.thread_name
    return turn


def lend_thread(creator: ProgramThread, task: Any) -> TurnThread | None:
    """Return a thread for a task that runs as its creator; None while another task does."""
    memory = _memory_of(creator)
    other = None if memory.borrower is None else memory.borrower()
    if other is not None and not other.done():
        return None
    memory.borrower = weakref.ref(task)
    return turn_of(creator, creator)


def start(thread: ProgramThread, *pasts: CausalPast) -> None:
    """Let a new thread start after these pasts."""
    for past in pasts:
        follow(thread, past)
    thread.inherited = thread.frontier
    memory = _memory_of(thread)
    memory.base = memory.past.known


class AgentHistory:
    """What one agent has done in one program so far."""

    __slots__ = ("past", "thread")

    def __init__(self, thread: ProgramThread) -> None:
        self.thread = thread
        """Holds the agent's thread id, and returns it when the agent is collected."""
        self.past = CausalPast()


def history_of(agent: object, program_id: str) -> AgentHistory | None:
    """Return an agent's history in a program, if it has handled a message there."""
    histories: dict[str, AgentHistory] = vars(agent).get(ATTRIBUTE, {})
    return histories.get(program_id)


def _ensure_history(agent: object, thread: ProgramThread) -> AgentHistory:
    histories: dict[str, AgentHistory] = vars(agent).setdefault(ATTRIBUTE, {})
    program_id = thread.program.program_id
    history = histories.get(program_id)
    if history is None:
        while len(histories) >= MAX_HISTORIES:
            del histories[next(iter(histories))]
        history = histories[program_id] = AgentHistory(ProgramThread(thread.program, ()))
        history.thread.name = safely(_name_of, agent)
    return history


def _name_of(agent: Any) -> str | None:
    """Return the name that an agent's user knows: a team has agents of its own around the user's."""
    member = getattr(agent, "_agent", None)
    names = (getattr(member, "name", None), getattr(agent, "_name", None), agent.id.type)
    return next((name for name in names if name and isinstance(name, str)), None)


class Handling:
    """One message that one agent handles: a turn that runs until `close`."""

    __slots__ = ("_arrival", "_before", "_history", "_turn")

    def __init__(self, agent: object) -> None:
        self._arrival = running_thread()
        self._history = _ensure_history(agent, self._arrival)
        self._turn = turn_of(self._arrival, self._history.thread)
        self._turn.previous = self._arrival
        start(self._turn, past_of(self._arrival), self._history.past)
        self._before = switch_to(self._turn)

    def close(self) -> None:
        """Update the agent's history, and let the waiting thread depend on the turn."""
        self._turn.is_closed = True
        switch_to(self._before)
        past = past_of(self._turn)
        self._history.past = self._history.past.joined(past)
        follow(self._arrival, past)


def catch_up(agent: object) -> None:
    """Let the running turn depend on what its agent has handled while the turn waited to start."""
    turn = running_thread()
    history = history_of(agent, turn.program.program_id)
    if history is not None and isinstance(turn, TurnThread) and turn.lender is history.thread:
        start(turn, history.past)
