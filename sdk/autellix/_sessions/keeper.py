"""Starts sessions, sends their heartbeats, and ends them, on the control thread.

Calls only queue a step. Every exchange with a backend happens on the control thread, with a time limit and
without a lock, so a dead backend costs the user's program only the bounded wait at its exit.

The process has one session of its own; `autellix.session` opens others. A session that has been idle for long
gets no more heartbeats, and the backend ends it.
"""

from __future__ import annotations

import threading
import time

from autellix._faults import log_debug
from autellix._sessions.backends import FOREIGN, KNOWN, UNKNOWN, backends
from autellix._sessions.control_thread import ControlThread
from autellix._sessions.exchange import SessionWatch, exchange
from autellix._sessions.session import NEVER_S, PENDING, REGISTERED, ClientSession

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from autellix._sessions.backends import Backend
    from autellix._sessions.session import Registration

EXIT_LIMIT_S = 1.0
FORK_LIMIT_S = 0.05
MIN_HEARTBEAT_S = 0.05
IDLE_SESSION_S = 900.0
MAX_SESSIONS = 4096
CLIENT = "autellix-python"
# Statuses that do not show what the server is: try again later.
TRANSIENT_STATUSES = frozenset({401, 403, 408, 425, 429, 500, 502, 503, 504})


class SessionKeeper:
    """The sessions of this process, and the control thread that keeps them alive."""

    def __init__(self) -> None:
        self.process_session = ClientSession()
        self._named: dict[str, ClientSession] = {}
        self._lock = threading.Lock()
        self._control = ControlThread(self._timeout_s, self._send_heartbeats)

    def open(self, session_id: str | None, *, ends: bool = True) -> ClientSession:
        """Return the session to enter: the one with this id, else a new one."""
        with self._lock:
            session = self._named.get(session_id) if session_id else None
            if session is None:
                session = ClientSession(session_id)
                while len(self._named) >= MAX_SESSIONS:
                    del self._named[next(iter(self._named))]
                self._named[session.session_id] = session
            session.ends = ends
            session.open_scopes += 1
            return session

    def close(self, session: ClientSession) -> None:
        """Leave a session; leaving its last scope ends it, unless it may be continued. Never blocks."""
        with self._lock:
            session.open_scopes -= 1
            is_over = session.open_scopes <= 0 and session.ends
            if is_over:
                self._named.pop(session.session_id, None)
        if is_over and session.registrations:
            self._control.post(lambda: self._end(session, list(session.registrations)))

    def on_call(self, backend: Backend, session: ClientSession) -> Registration:
        """Record a call to a backend, and register the session there if that is due. Never blocks."""
        registration = session.registration(backend)
        now_s = session.used_s = time.monotonic()
        if registration.state != REGISTERED:
            if registration.is_due(now_s):
                registration.state = PENDING
                self._control.post(lambda: self._register(backend, session, registration))
        elif registration.heartbeat_due_s == NEVER_S:
            # After a long idle time the backend may have ended the session; its answer will show.
            registration.heartbeat_due_s = now_s
            self._control.post(self._send_heartbeats)
        else:
            # The thread is stopped around a fork.
            self._control.ensure_started()
        return registration

    def end_program(self, backend: Backend, program_id: str) -> None:
        """End a program at a backend. Never blocks."""
        self._control.post(lambda: _end_program(backend, program_id))

    def stop(self) -> threading.Thread | None:
        """End all sessions and stop the control thread; return it."""
        admitted = backends.admitted()
        return self._control.stop(lambda: self._end_all(admitted))

    def pause(self) -> threading.Thread | None:
        """Stop the control thread and keep the sessions; return it."""
        return self._control.stop()

    def resume(self) -> None:
        """Continue the heartbeats after a pause."""
        if any(registration.state == REGISTERED for *_, registration in self._registrations()):
            self._control.ensure_started()

    def leave(self, left: list[Backend]) -> None:
        """End the sessions at backends that get no more calls. Never blocks."""
        if any(backend in left for _, backend, _ in self._registrations()):
            self._control.post(lambda: self._end_all(left))

    def close_watches(self) -> None:
        """Close this process's copies of its parent's watches."""
        for *_, registration in self._registrations():
            registration.close()

    def _sessions(self) -> list[ClientSession]:
        return [self.process_session, *list(self._named.values())]

    def _registrations(self) -> Iterator[tuple[ClientSession, Backend, Registration]]:
        for session in self._sessions():
            for backend, registration in list(session.registrations.items()):
                yield session, backend, registration

    def _timeout_s(self) -> float | None:
        due_s = min(
            (registration.heartbeat_due_s for *_, registration in self._registrations()), default=NEVER_S
        )
        return None if due_s == NEVER_S else max(0.0, due_s - time.monotonic())

    def _register(self, backend: Backend, session: ClientSession, registration: Registration) -> None:
        from autellix_wire import SESSIONS_PATH
        from autellix_wire.ids import is_header_value
        from autellix_wire.sessions import InvalidBodyError, SessionStart, SessionStarted

        body = SessionStart(session_id=session.session_id, client=CLIENT).to_bytes()
        answer = exchange(backend, "POST", SESSIONS_PATH, body)
        now_s = time.monotonic()
        if answer is None or answer[0] in TRANSIENT_STATUSES:
            registration.mark_unreachable(now_s)
            backend.finish_probe(backend.state)
            return
        try:
            if answer[0] not in (200, 201):
                raise InvalidBodyError(f"the status is {answer[0]}")
            started = SessionStarted.from_bytes(answer[1])
        except InvalidBodyError as error:
            log_debug("%s is not an Autellix backend: %s", backend.origin, error)
            registration.close()
            backend.finish_probe(FOREIGN)
            return
        # A token that no header can carry is none.
        token = started.token if is_header_value(started.token) else None
        registration.mark_registered(max(started.heartbeat_s, MIN_HEARTBEAT_S), token, now_s)
        backend.finish_probe(KNOWN)
        if session is self.process_session:
            registration.watch = registration.watch or SessionWatch(backend, _path(session, "/watch"))
            registration.watch.ensure_open()

    def _send_heartbeats(self) -> None:
        for session, backend, registration in self._registrations():
            now_s = time.monotonic()
            if registration.heartbeat_due_s > now_s:
                continue
            if self._is_idle(session, now_s):
                registration.heartbeat_due_s = NEVER_S
                continue
            registration.heartbeat_due_s = now_s + registration.heartbeat_s
            answer = exchange(backend, "POST", _path(session, "/heartbeat"), b"{}")
            if answer is not None and answer[0] == 404:
                # The backend restarted, or has ended the session.
                self._register(backend, session, registration)
            elif registration.watch is not None:
                registration.watch.ensure_open()

    def _is_idle(self, session: ClientSession, now_s: float) -> bool:
        is_open = session is self.process_session or session.open_scopes
        return not is_open and now_s - session.used_s > IDLE_SESSION_S

    def _end_all(self, left: list[Backend]) -> None:
        deadline_s = time.monotonic() + EXIT_LIMIT_S
        for session in self._sessions():
            if time.monotonic() < deadline_s:
                self._end(session, [backend for backend in left if backend in session.registrations])

    def _end(self, session: ClientSession, left: list[Backend]) -> None:
        for backend in left:
            registration = session.registrations.pop(backend)
            if registration.state == REGISTERED:
                exchange(backend, "DELETE", _path(session), None, timeout_s=EXIT_LIMIT_S)
            registration.close()


def _path(session: ClientSession, suffix: str = "") -> str:
    from urllib.parse import quote

    from autellix_wire import SESSIONS_PATH

    return f"{SESSIONS_PATH}/{quote(session.session_id, safe='')}{suffix}"


def _end_program(backend: Backend, program_id: str) -> None:
    from urllib.parse import quote

    from autellix_wire import PROGRAMS_PATH

    if backend.state == KNOWN:
        exchange(backend, "DELETE", f"{PROGRAMS_PATH}/{quote(program_id, safe='')}", None)


class _Process:
    """The keeper of this process; a forked child replaces it."""

    def __init__(self) -> None:
        self.keeper = SessionKeeper()


_process = _Process()


def keeper() -> SessionKeeper:
    return _process.keeper


def process_session() -> ClientSession:
    return _process.keeper.process_session


def end_at_exit() -> None:
    """End the sessions; wait for the backends for EXIT_LIMIT_S at most."""
    thread = _process.keeper.stop()
    if thread is not None:
        thread.join(EXIT_LIMIT_S)


def before_fork() -> None:
    """Stop the control thread, unless it is in an exchange: Python 3.12 warns of a fork beside threads."""
    thread = _process.keeper.pause()
    if thread is not None and thread is not threading.current_thread():
        thread.join(FORK_LIMIT_S)


def after_fork_in_parent() -> None:
    _process.keeper.resume()


def after_fork_in_child() -> None:
    """Give the child a session of its own; call after the ids are renewed."""
    _process.keeper.close_watches()
    for backend in backends.admitted():
        if backend.state == UNKNOWN:
            backend.reset_probe()
    _process.keeper = SessionKeeper()
