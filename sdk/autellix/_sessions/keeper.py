"""Starts sessions, sends their heartbeats, and ends them, on the control thread.

Calls only queue a step. Every exchange with a backend happens on the control thread, with a time limit and
without a lock, so a dead backend costs the user's program only the bounded wait at its exit.

The process has one session of its own; `autellix.session` opens others. A session that has been idle
for IDLE_SESSION_S gets no more heartbeats, and the backend ends it.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict

from autellix._faults import log_debug
from autellix._open_scopes import OpenScopes, add_open, find_open, remove
from autellix._sessions.backends import FOREIGN, KNOWN, UNKNOWN, backends
from autellix._sessions.control_thread import ControlThread
from autellix._sessions.exchange import SessionWatch, exchange, exchange_all
from autellix._sessions.program_ends import ProgramEnds
from autellix._sessions.session import NEVER_S, PENDING, REGISTERED, UNREACHABLE, ClientSession, session_proof
from autellix_wire.paths import SESSIONS_PATH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from autellix._sessions.backends import Account, Backend
    from autellix._sessions.connection import Answer
    from autellix._sessions.session import Registration

EXIT_LIMIT_S = 1.0
FORK_LIMIT_S = 0.05
MIN_HEARTBEAT_S = 0.05
MIN_DISCOVERED_HEARTBEAT_S = 1.0
"""Where the user has not named the backend."""
MISSED_HEARTBEAT_S = 10.0
"""From a heartbeat without an answer to the next one, at least."""
MAX_TOKEN_CHARACTERS = 4096
IDLE_SESSION_S = 900.0
MAX_SESSIONS = 4096
BATCH = 128
"""Heartbeats that are sent together."""
CLIENT = "autellix-python"
# Statuses that do not show what the server is: try again later.
TRANSIENT_STATUSES = frozenset({401, 403, 408, 409, 425, 429, 500, 502, 503, 504})


class SessionKeeper:
    """The sessions of this process, and the control thread that keeps them alive."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self.process_session = ClientSession()
        self._named: dict[str, ClientSession] = {}
        self._paused: OrderedDict[str, ClientSession] = OrderedDict()
        """Sessions without an open scope, which later scopes may continue."""
        self._due_s = NEVER_S
        """When the next heartbeat is due, or earlier."""
        self._control = ControlThread(self._timeout_s, self._send_heartbeats)
        self.program_ends = ProgramEnds(self._control)

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
        elif session.registrations:
            self._control.post(lambda: self._end(session, list(session.registrations.values())))

    def on_call(self, account: Account, session: ClientSession) -> Registration:
        """Record a call to a backend, and register the session there if that is due. Never blocks."""
        registration = session.registration(account)
        now_s = registration.used_s = time.monotonic()
        if registration.state != REGISTERED:
            if registration.is_due(now_s):
                self._post_registration(registration)
        elif registration.heartbeat_due_s == NEVER_S:
            # After a long idle time the backend may have ended the session; its answer will show.
            registration.heartbeat_due_s = self._due_s = now_s
            self._control.post(self._send_heartbeats)
        else:
            # The thread is stopped around a fork.
            self._control.ensure_started()
        return registration

    def on_answer(self, registration: Registration, status: int, *, is_ours: bool, is_refused: bool) -> None:
        """Note how a backend has answered a call; register the session if it may work now. Never blocks.

        Args:
            registration: Where the call went, by which key, and in which session.
            status: The status of the answer.
            is_ours: Whether the answer has the mark of an Autellix backend.
            is_refused: Whether the backend did not take the session's token.
        """
        if registration.state == REGISTERED:
            if status == 401 or is_refused:
                # It restarted with another secret, or has ended the session.
                self._post_registration(registration)
        elif registration.state == UNREACHABLE and (
            is_ours or (status < 500 and not registration.is_foreign)
        ):
            self._post_registration(registration)

    def _post_registration(self, registration: Registration) -> None:
        registration.state = PENDING
        self._control.post(lambda: self._register(registration))

    def stop(self) -> threading.Thread | None:
        """End all sessions and stop the control thread; return it."""
        admitted = backends.admitted()
        return self._control.stop(lambda: self._end_all(admitted))

    def end_at_exit(self) -> None:
        """End all sessions; wait for the backends for EXIT_LIMIT_S at most."""
        thread = self.stop()
        if thread is not None:
            thread.join(EXIT_LIMIT_S)

    def before_fork(self) -> None:
        """Stop the control thread unless it is in an exchange: Python 3.12 warns of a fork beside threads."""
        thread = self._control.stop()
        if thread is not None and thread is not threading.current_thread():
            thread.join(FORK_LIMIT_S)

    def after_fork_in_parent(self) -> None:
        """Continue the heartbeats."""
        if any(registration.state == REGISTERED for _, registration in self.registrations()):
            self._control.ensure_started()

    def after_fork_in_child(self) -> None:
        """Start the child with new sessions; call after the ids are renewed."""
        for _, registration in self.registrations():
            # These are copies of the parent's watches.
            registration.close()
        for backend in backends.admitted():
            if backend.state == UNKNOWN:
                backend.reset_probe()
        self._reset()

    def leave(self, left: list[Backend]) -> None:
        """End the sessions at backends that get no more calls. Never blocks."""
        if any(registration.account.backend in left for _, registration in self.registrations()):
            self._control.post(lambda: self._end_all(left))

    def _sessions(self) -> list[ClientSession]:
        return [self.process_session, *list(self._named.values()), *list(self._paused.values())]

    def registrations(self) -> Iterator[tuple[ClientSession, Registration]]:
        """Iterate over all registrations of this process, each with its session."""
        for session in self._sessions():
            for registration in list(session.registrations.values()):
                yield session, registration

    def _timeout_s(self) -> float | None:
        return None if self._due_s == NEVER_S else max(0.0, self._due_s - time.monotonic())

    def _register(self, registration: Registration) -> None:
        from autellix_wire.sessions import SessionStart

        account = registration.account
        try:
            proof = session_proof(account.backend)
            start = SessionStart(session_id=registration.session_id, client=CLIENT, proof=proof)
            answer = exchange(account, "POST", SESSIONS_PATH, start.to_bytes(), proof=registration.proof())
            self._conclude(registration, answer)
        finally:
            if registration.state == PENDING:
                registration.mark_unreachable(time.monotonic())
        is_of_process = self.process_session.registrations.get(account) is registration
        if is_of_process and registration.state == REGISTERED:
            registration.watch = registration.watch or SessionWatch(
                account, registration.path("/watch"), registration.proof
            )
            registration.watch.ensure_open()

    def _conclude(self, registration: Registration, answer: Answer | None) -> None:
        """Record the answer to a registration, which also shows what the server is."""
        from autellix_wire.ids import is_header_value
        from autellix_wire.sessions import InvalidBodyError, SessionStarted

        backend, now_s = registration.account.backend, time.monotonic()
        if answer is None or answer[0] in TRANSIENT_STATUSES:
            log_debug("%s: no session, status %s", backend.origin, answer and answer[0])
            registration.mark_unreachable(now_s)
            backend.finish_probe(backend.state)
            return
        try:
            if answer[0] not in (200, 201):
                raise InvalidBodyError(f"the status is {answer[0]}")
            started = SessionStarted.from_bytes(answer[1])
        except InvalidBodyError as error:
            log_debug("%s is not an Autellix backend: %s", backend.origin, error)
            registration.mark_unreachable(now_s, is_foreign=True)
            # One that is known may be starting behind a proxy that answers for it.
            backend.finish_probe(KNOWN if backend.state == KNOWN else FOREIGN)
            return
        # A token that no header can carry is none.
        is_sane = is_header_value(started.token) and len(started.token or "") <= MAX_TOKEN_CHARACTERS
        least_s = MIN_HEARTBEAT_S if backend.is_configured else MIN_DISCOVERED_HEARTBEAT_S
        heartbeat_s = max(started.heartbeat_s, least_s)
        registration.mark_registered(heartbeat_s, started.token if is_sane else None, now_s)
        self._due_s = min(self._due_s, registration.heartbeat_due_s)
        if not backends.confirm(backend):
            registration.mark_unreachable(now_s, is_foreign=True)

    def _send_heartbeats(self) -> None:
        """Send the heartbeats that are due, and with them those of the same backends that soon will be."""
        now_s = time.monotonic()
        due: dict[Account, list[Registration]] = {}
        for session, registration in self.registrations():
            if registration.heartbeat_due_s == NEVER_S:
                continue
            if self._is_idle(session, now_s):
                registration.heartbeat_due_s = NEVER_S
            elif registration.heartbeat_due_s - now_s < registration.heartbeat_s / 2:
                due.setdefault(registration.account, []).append(registration)
        for account, entries in due.items():
            if any(registration.heartbeat_due_s <= now_s for registration in entries):
                for start in range(0, len(entries), BATCH):
                    self._send_batch(account, entries[start : start + BATCH])
        self._due_s = min((entry.heartbeat_due_s for _, entry in self.registrations()), default=NEVER_S)

    def _send_batch(self, account: Account, entries: list[Registration]) -> None:
        requests = []
        for registration in entries:
            registration.heartbeat_due_s = time.monotonic() + registration.heartbeat_s
            requests.append(("POST", registration.path("/heartbeat"), b"{}", registration.proof()))
        for registration, answer in zip(entries, exchange_all(account, requests), strict=True):
            if answer is None:
                missed_s = max(registration.heartbeat_s, MISSED_HEARTBEAT_S)
                registration.heartbeat_due_s = time.monotonic() + missed_s
            elif answer[0] in (401, 404):
                # The backend restarted, has ended the session, or no longer takes its token.
                self._post_registration(registration)
            elif registration.watch is not None:
                registration.watch.ensure_open()

    def _is_idle(self, session: ClientSession, now_s: float) -> bool:
        is_open = session is self.process_session or session.scopes
        return not is_open and now_s - session.used_s > IDLE_SESSION_S

    def _end_all(self, left: list[Backend]) -> None:
        deadline_s = time.monotonic() + EXIT_LIMIT_S
        for session in self._sessions():
            if time.monotonic() < deadline_s:
                entries = list(session.registrations.values())
                self._end(session, [entry for entry in entries if entry.account.backend in left])

    def _end(self, session: ClientSession, left: list[Registration]) -> None:
        for registration in left:
            account = registration.account
            del session.registrations[account]
            if registration.state == REGISTERED:
                proof = registration.proof()
                exchange(account, "DELETE", registration.path(), None, timeout_s=EXIT_LIMIT_S, proof=proof)
            registration.close()


keeper = SessionKeeper()
