"""Tells a backend which sessions live, and which sessions and programs have ended.

Each backend has a thread of its own, so one that is slow or hostile keeps no other waiting. Whatever is told
takes the way of the calls, with their key, and only after an answer to a call has carried the mark.
"""

from __future__ import annotations

import time
from functools import partial

from autellix._faults import log_debug, log_warning, safely
from autellix._sessions.backends import KEY_HEADERS
from autellix._sessions.control_thread import ControlThread
from autellix._sessions.session import NEVER_S
from autellix_wire.headers import SESSION_ID, SESSION_PROOF
from autellix_wire.paths import PROGRAMS_PATH, SESSIONS_PATH

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable

    from autellix._sessions.backends import Backend
    from autellix._sessions.route import Route
    from autellix._sessions.session import ClientSession, Registration

    Entries = Callable[[], Iterable[tuple[ClientSession, Registration]]]

CLIENT = "autellix-python"
PATIENCE_S = 2.0
"""The time limit of each step of an exchange."""
MIN_HEARTBEAT_S = 0.05
MIN_DISCOVERED_HEARTBEAT_S = 1.0
"""Where the user has not named the backend."""
MISSED_HEARTBEAT_S = 10.0
"""From a heartbeat without success to the next one."""
AHEAD_S = 1.0
"""How early a heartbeat may be sent with others: the look for those that are due costs as much as several."""
IDLE_SESSION_S = 900.0
"""Without a call; the backend ends the session some time after its last heartbeat."""


class Upkeep:
    """What one backend is told."""

    def __init__(self, backend: Backend, entries: Entries) -> None:
        """Note the backend; `entries` lists the registrations of this process."""
        self._backend = backend
        self._entries = entries
        self._due_s = NEVER_S
        """When the next heartbeat is due, or earlier."""
        self._route: Route | None = None
        """The way of the last request, whose connection is kept."""
        self._has_warned = False
        self._thread = ControlThread(self._pause, self._close_route)

    def keep(self, registration: Registration) -> None:
        """Start a session at the backend, and keep it there."""
        registration.due_s = 0.0
        self._thread.post(self._send_heartbeats)
        self._thread.ensure_started()

    def end_program(self, registration: Registration, program_id: str) -> None:
        """End a program. Never blocks, so that a finalizer may call it."""
        self._thread.post(partial(self._delete, registration, PROGRAMS_PATH, program_id))

    def end_session(self, session: ClientSession, registration: Registration) -> None:
        """End a session. Never blocks, so that a finalizer may call it."""
        self._thread.post(partial(self._end, session, registration))

    def stop(self, *, ends_sessions: bool) -> threading.Thread | None:
        """Let the thread finish, after the end of all sessions or in silence; return it if it runs."""
        return self._thread.stop(self._end_all if ends_sessions else None)

    def resume(self) -> None:
        """Go on after a stop in silence."""
        if self._due_s != NEVER_S:
            self._thread.ensure_started()

    def _pause(self) -> float | None:
        if self._due_s <= time.monotonic():
            safely(self._send_heartbeats)
        return None if self._due_s == NEVER_S else max(0.0, self._due_s - time.monotonic())

    def _registrations(self) -> list[tuple[ClientSession, Registration]]:
        return [entry for entry in self._entries() if entry[1].account.backend is self._backend]

    def _send_heartbeats(self) -> None:
        """Send the heartbeats that are due; a session without calls for long gets none."""
        for session, registration in self._registrations():
            now_s = time.monotonic()
            if registration.due_s > now_s + AHEAD_S:
                continue
            if now_s - registration.used_s > IDLE_SESSION_S:
                session.drop(registration)
            else:
                self._send_heartbeat(registration)
        self._due_s = min((entry.due_s for _, entry in self._registrations()), default=NEVER_S)

    def _send_heartbeat(self, registration: Registration) -> None:
        """Start the session, or show that it lives: the request is the same."""
        from autellix_wire.sessions import InvalidBodyError, SessionStart, SessionStarted

        # Before anything can fail: it must not be repeated at once.
        registration.due_s = time.monotonic() + MISSED_HEARTBEAT_S
        start = SessionStart(session_id=registration.session_id, client=CLIENT, proof=self._backend.proof)
        status, body = self._exchange(registration, "POST", SESSIONS_PATH, start.to_bytes())
        try:
            if status not in (200, 201):
                raise InvalidBodyError(f"the status is {status}")
            heartbeat_s = SessionStarted.from_bytes(body).heartbeat_s
        except InvalidBodyError as error:
            log_debug("no session at %s: %s", self._backend.url, error)
            registration.is_running = False
            registration.failures += 1
            return
        least_s = MIN_HEARTBEAT_S if self._backend.is_configured else MIN_DISCOVERED_HEARTBEAT_S
        registration.is_running, registration.failures = True, 0
        registration.due_s = time.monotonic() + max(heartbeat_s, least_s)

    def _end_all(self) -> None:
        for session, registration in self._registrations():
            if session.ends or not session.has_chosen_id:
                self._end(session, registration)
            else:
                # Other processes may have it open too; it ends some time after the last heartbeat.
                session.drop(registration)

    def _end(self, session: ClientSession, registration: Registration) -> None:
        session.drop(registration)
        if registration.due_s != NEVER_S:
            self._delete(registration, SESSIONS_PATH, registration.session_id)

    def _delete(self, registration: Registration, path: str, name: str) -> None:
        from urllib.parse import quote

        self._exchange(registration, "DELETE", f"{path}/{quote(name, safe='')}", None)

    def _exchange(
        self, registration: Registration, method: str, path: str, body: bytes | None
    ) -> tuple[int, bytes]:
        """Send a request, and return status and body; the status is 0 if no answer has come."""
        account = registration.account
        route, keys = account.route, account.credentials
        if route is None or keys is None:
            return 0, b""
        headers = {SESSION_ID: registration.session_id, SESSION_PROOF: self._backend.proof}
        for name, value in zip(KEY_HEADERS, keys, strict=True):
            if value is not None:
                headers[name.decode()] = value.decode("latin-1")
        if body is not None:
            headers["Content-Type"] = "application/json"
        if route is not self._route:
            self._close_route()
            self._route = route
        try:
            return route.request(method, self._backend.url + path, headers, body, PATIENCE_S)
        except Exception as error:  # noqa: BLE001 - the boundary to another library, whose errors are its own
            self._close_route()
            self._note(error, f"{method} {self._backend.url}{path}")
            return 0, b""

    def _close_route(self) -> None:
        route, self._route = self._route, None
        if route is not None:
            route.close()

    def _note(self, error: BaseException, request: str) -> None:
        import ssl

        log_debug("%s: %r", request, error)
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, ssl.SSLError):
            cause = cause.__cause__ or cause.__context__
        if cause is not None and not self._has_warned:
            self._has_warned = True
            log_warning("%s: %s. Sessions and programs there end only when they are idle", request, cause)
