"""Defines the scopes of programs, threads and sessions."""

from __future__ import annotations

from autellix._ids import ids
from autellix._programs.hints import NO_HINTS, ProgramHints, check_name, shown
from autellix._programs.registry import programs
from autellix._programs.remote import context_of, enter_remote, leave_remote
from autellix._programs.running import running_thread, thread_outside
from autellix._programs.thread import ProgramThread
from autellix._scopes.scope import Scope
from autellix._sessions.keeper import keeper
from autellix_wire.ids import MAX_ID_BYTES, check_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


MAX_STEP = 10**12
"""A longer number might be no id."""


class ProgramScope(Scope):
    """A scope that is one program."""

    def __init__(
        self,
        name: str | None,
        program_id: str | None = None,
        *,
        hints: ProgramHints = NO_HINTS,
        ends: bool = True,
        is_implicit: bool = False,
    ) -> None:
        super().__init__()
        self._name = None if name is None else quote_name(check_name(name, "program"))
        self._program_id = None if program_id is None else check_id(program_id, "id")
        self._hints = hints
        self._ends = ends
        self._is_implicit = is_implicit

    def _open(self, previous: ProgramThread | None) -> ProgramThread:
        program = programs.open(self._name, self._program_id, ends=self._ends)
        program.hints = self._hints.over(program.hints)
        program.is_implicit = self._is_implicit
        if previous is not None and previous.program is program:
            return previous.branch().nested_in(previous)
        session = None if previous is None else previous.session
        return ProgramThread(program, program.frontier, session).nested_in(previous)

    def _close(self, thread: ProgramThread) -> None:
        previous = thread.previous
        is_branch = previous is not None and previous.program is thread.program
        programs.close(thread.program, None if is_branch else thread.progress())


class ThreadScope(Scope):
    """A scope that is one thread of the running program."""

    def __init__(self, name: str | None) -> None:
        super().__init__()
        self._name = None if name is None else check_name(name, "thread")

    def _open(self, previous: ProgramThread | None) -> ProgramThread:
        parent = previous or running_thread()
        thread_id = None if self._name is None else parent.program.thread_id_of(self._name)
        # A branch that its parent joins: once it is closed, the parent's next call depends on its calls.
        thread = parent.branch().nested_in(parent, thread_id)
        thread.name = self._name
        return thread


class BranchScope(Scope):
    """A scope whose every entry is a branch of one point of a program."""

    def __init__(self, origin: ProgramThread) -> None:
        super().__init__()
        self._origin = origin

    def __getstate__(self) -> dict[str, Any]:
        return {"context": context_of(self._origin)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        origin = enter_remote(state["context"])
        # It holds no program open.
        leave_remote(origin)
        self.__init__(origin)  # type: ignore[misc]

    def _open(self, previous: ProgramThread | None) -> ProgramThread:
        thread = self._origin.sibling().nested_in(previous)
        # The user has said that it belongs there.
        thread.is_lasting = True
        return thread


class DetachedScope(Scope):
    """A scope outside of all programs and sessions."""

    def _open(self, previous: ProgramThread | None) -> ProgramThread:
        return thread_outside().nested_in(previous)


class SessionScope(Scope):
    """A scope that is one session."""

    def __init__(self, session_id: str | None, *, step: int | None = None, ends: bool = True) -> None:
        super().__init__()
        if step is not None and (type(step) is not int or not 0 <= step <= MAX_STEP):
            raise ValueError(f"step is {shown(step)}; expected a whole number, at most {MAX_STEP}")
        if step is not None and session_id is not None:
            raise ValueError("session() got an id and a step; expected one of them")
        # Steps of two trainers have the same numbers, and must not end each other.
        session_id = session_id if step is None else ids.make(f"step-{step}")
        self._session_id = None if session_id is None else check_id(check_name(session_id, "session"), "id")
        self._ends = ends

    def _open(self, previous: ProgramThread | None) -> ProgramThread:
        parent = previous or running_thread()
        thread = parent.branch().nested_in(parent, parent.thread_id)
        thread.name = parent.thread_name
        thread.session = keeper.open(self._session_id, ends=self._ends)
        return thread

    def _close(self, thread: ProgramThread) -> None:
        if thread.session is not None:
            keeper.close(thread.session)


def root_scope(name: str | None, program_id: str | None = None, *, ends: bool = True) -> ProgramScope | None:
    """Return the scope for a framework's run, or None inside a program that has been named."""
    if not running_thread().program.is_implicit:
        return None
    return ProgramScope(name, program_id, ends=ends)


def end_program(program_id: str) -> None:
    """End a program of several turns that has no open scope; do nothing if there is no such program.

    Raises:
        ValueError: if the id breaks the wire rules.
    """
    programs.end_suspended(check_id(program_id, "program_id"))


def quote_name(name: str) -> str | None:
    """Return a name that a header can carry, or None if nothing is left of it.

    Characters outside printable ASCII become %XX.
    """
    name = name.strip()[:MAX_ID_BYTES]
    if not (name.isascii() and name.isprintable()):
        from urllib.parse import quote

        name = quote(name, safe=" !#$&'()*+,/:;=?@[]", errors="replace")
    # Once more after the cut, which may lie behind a blank.
    return name[:MAX_ID_BYTES].strip() or None
