"""Keeps the sessions of this process: the process's own, and those that `autellix.session` opens.

Calls and scopes only note what has happened; a thread for each backend tells it (`upkeep.py`). So a dead
backend costs the user's program only the bounded wait at its exit.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict

from autellix._open_scopes import OpenScopes, add_open, find_open, remove
from autellix._sessions.session import NEVER_S, ClientSession
from autellix._sessions.upkeep import Upkeep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from autellix._sessions.backends import Backend, Credentials
    from autellix._sessions.session import Registration

EXIT_LIMIT_S = 1.0
FORK_LIMIT_S = 0.05
MAX_SESSIONS = 4096


class SessionKeeper:
    """The sessions of this process."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self.process_session = ClientSession()
        self._named: dict[str, ClientSession] = {}
        self._paused: OrderedDict[str, ClientSession] = OrderedDict()
        """Sessions without an open scope, which later scopes may continue."""
        self._upkeeps: dict[Backend, Upkeep] = {}

    def open(self, session_id: str | None, *, ends: bool = True) -> ClientSession:
        """Return the session to enter: the one with this id, else a new one."""
        session = None if session_id is None else find_open(self._named, session_id)
        while session is None:
            fresh = self._paused.pop(session_id, None) if session_id else None
            if fresh is None:
                fresh = ClientSession(session_id)
            else:
                fresh.scopes = OpenScopes()
            session = add_open(self._named, fresh.session_id, fresh)
        session.ends = ends
        return session

    def close(self, session: ClientSession) -> None:
        """Leave a session; leaving its last scope ends it, unless it may be continued. Never blocks."""
        if not session.scopes.leave():
            return
        remove(self._named, session.session_id, session)
        if not session.ends:
            self._paused[session.session_id] = session
            while len(self._paused) > MAX_SESSIONS:
                self._paused.popitem(last=False)
            return
        for registration in list(session.registrations.values()):
            if registration.due_s != NEVER_S:
                self._upkeep(registration).end_session(session, registration)

    def on_answer(self, registration: Registration, credentials: Credentials) -> None:
        """Note that a backend has taken the key of a call, and keep the call's session there."""
        account = registration.account
        registration.used_s = time.monotonic()
        account.credentials = credentials
        account.backend.has_answered = True
        if registration.due_s == NEVER_S and account.route is not None:
            self._upkeep(registration).keep(registration)

    def _upkeep(self, registration: Registration) -> Upkeep:
        backend = registration.account.backend
        if (found := self._upkeeps.get(backend)) is not None:
            return found
        # setdefault: two threads that get the first answers at once share one.
        return self._upkeeps.setdefault(backend, Upkeep(backend, self.registrations))

    def end_program(self, registration: Registration, program_id: str) -> None:
        """End a program at a backend that knows its session. Never blocks."""
        if registration.due_s != NEVER_S:
            self._upkeep(registration).end_program(registration, program_id)

    def leave_all(self) -> list[threading.Thread | None]:
        """End all sessions in the background; return the threads that do it."""
        for session, registration in list(self.registrations()):
            if registration.due_s == NEVER_S:
                session.drop(registration)
        upkeeps, self._upkeeps = self._upkeeps, {}
        return [upkeep.stop(ends_sessions=True) for upkeep in upkeeps.values()]

    def end_at_exit(self) -> None:
        """End all sessions; wait for the backends for EXIT_LIMIT_S at most."""
        _join(self.leave_all(), EXIT_LIMIT_S)

    def before_fork(self) -> None:
        """Stop the threads unless they are in an exchange: Python 3.12 warns of a fork beside threads."""
        _join([upkeep.stop(ends_sessions=False) for upkeep in list(self._upkeeps.values())], FORK_LIMIT_S)

    def after_fork_in_parent(self) -> None:
        """Continue the heartbeats."""
        for upkeep in list(self._upkeeps.values()):
            upkeep.resume()

    def after_fork_in_child(self) -> None:
        """Start the child with new sessions; call after the ids are renewed."""
        self._reset()

    def registrations(self) -> Iterator[tuple[ClientSession, Registration]]:
        """Iterate over all registrations of this process, each with its session."""
        for session in [self.process_session, *list(self._named.values()), *list(self._paused.values())]:
            for registration in list(session.registrations.values()):
                yield session, registration


def _join(threads: list[threading.Thread | None], limit_s: float) -> None:
    deadline_s = time.monotonic() + limit_s
    for thread in threads:
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(0.0, deadline_s - time.monotonic()))


keeper = SessionKeeper()
