"""Owns this process's session: start, heartbeats and end, on one daemon thread, off the user's path.

Calls only put a step into the inbox. Every exchange with a backend happens on the control thread, with a
time limit and under no lock, so a dead backend costs the user's program nothing but the last, bounded wait
at its exit.
"""

from __future__ import annotations

import queue
import threading
import time

from autellix import _backends, _scope
from autellix._backends import Backend, backends
from autellix._safely import note, safely

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from http.client import HTTPConnection

    Step = Callable[[], None]

EXCHANGE_TIMEOUT_S = 2.0
EXIT_LIMIT_S = 1.0
FORK_LIMIT_S = 0.05
SHORTEST_HEARTBEAT_S = 0.05
CLIENT = "autellix-python"
# Answers that say nothing about what the server is: worth another attempt later.
PASSING_STATUSES = frozenset({401, 403, 408, 425, 429, 500, 502, 503, 504})


class Session:
    """The conversation of this process with its backends."""

    def __init__(self) -> None:
        self.session_id = _scope.ids.make("session")
        self._inbox: queue.SimpleQueue[Step | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def touch(self, backend: Backend) -> None:
        """Note a call to a backend; start the session there if that is due. Never blocks."""
        if backend.state != _backends.REGISTERED and backend.needs_start(time.monotonic()):
            backend.state = _backends.PENDING
            self._post(lambda: self._start(backend))
        elif self._thread is None and backend.state == _backends.REGISTERED:
            # Stopped for a fork: the heartbeats go on with the next call.
            self._ensure_thread()

    def end_program(self, backend: Backend, program_id: str) -> None:
        """Tell a backend that a program is over. Never blocks."""
        self._post(lambda: self._end_program(backend, program_id))

    def stop(self, *, is_final: bool) -> threading.Thread | None:
        """Ask the control thread to finish, after ending the session if this is final; return the thread."""
        thread, self._thread = self._thread, None
        # A successor gets an inbox of its own, or it would take what is meant for this thread.
        inbox, self._inbox = self._inbox, queue.SimpleQueue()
        if thread is not None:
            if is_final:
                known = backends.known()
                inbox.put(lambda: self._end(known))
            inbox.put(None)
        return thread

    def leave(self, left: list[Backend]) -> None:
        """End the session at backends that get no more calls. Never blocks."""
        if any(backend.state in (_backends.PENDING, _backends.REGISTERED) for backend in left):
            self._post(lambda: self._end(left))

    def resume(self) -> None:
        """Continue the heartbeats after a fork in the parent."""
        if any(backend.state == _backends.REGISTERED for backend in backends.known()):
            self._ensure_thread()

    def _post(self, step: Step) -> None:
        self._inbox.put(step)
        self._ensure_thread()

    def _ensure_thread(self) -> None:
        if self._thread is not None:
            return
        thread = threading.Thread(target=self._run, args=(self._inbox,), name="autellix-control", daemon=True)
        self._thread = thread
        was_mute = _scope.set_mute(True)
        try:
            thread.start()
        except RuntimeError:
            # From Python 3.12 an exiting interpreter starts no threads; the session ends by lost heartbeat.
            self._thread = None
        finally:
            _scope.set_mute(was_mute)

    def _run(self, inbox: queue.SimpleQueue[Step | None]) -> None:
        while True:
            try:
                step = inbox.get(timeout=self._pause_s())
            except queue.Empty:
                step = self._send_heartbeats
            if step is None:
                return
            safely(step)

    def _pause_s(self) -> float | None:
        due_s = min((backend.heartbeat_due_s for backend in backends.known()), default=float("inf"))
        return None if due_s == float("inf") else max(0.0, due_s - time.monotonic())

    def _start(self, backend: Backend) -> None:
        from autellix_wire import SESSIONS_PATH
        from autellix_wire.sessions import InvalidBodyError, SessionStart, SessionStarted

        body = SessionStart(session_id=self.session_id, client=CLIENT).to_bytes()
        answer = _exchange(backend, "POST", SESSIONS_PATH, body)
        now_s = time.monotonic()
        if answer is None or answer[0] in PASSING_STATUSES:
            backend.mark_unreachable(now_s)
            return
        try:
            if answer[0] not in (200, 201):
                raise InvalidBodyError(f"the answer is {answer[0]}")
            started = SessionStarted.from_bytes(answer[1])
        except InvalidBodyError as error:
            note("%s is no Autellix backend: %s", backend.origin, error)
            backend.mark_foreign()
            return
        backend.mark_registered(max(started.heartbeat_s, SHORTEST_HEARTBEAT_S), now_s)

    def _send_heartbeats(self) -> None:
        from autellix_wire import SESSIONS_PATH

        for backend in backends.known():
            if backend.heartbeat_due_s > time.monotonic():
                continue
            backend.heartbeat_due_s = time.monotonic() + backend.heartbeat_s
            answer = _exchange(backend, "POST", f"{SESSIONS_PATH}/{self.session_id}/heartbeat", b"{}")
            if answer is not None and answer[0] == 404:
                # The backend was restarted, or took this session for lost.
                self._start(backend)

    def _end_program(self, backend: Backend, program_id: str) -> None:
        from urllib.parse import quote

        from autellix_wire import PROGRAMS_PATH

        if backend.state == _backends.REGISTERED:
            _exchange(backend, "DELETE", f"{PROGRAMS_PATH}/{quote(program_id, safe='')}", None)

    def _end(self, ended: list[Backend]) -> None:
        from autellix_wire import SESSIONS_PATH

        for backend in ended:
            if backend.state == _backends.REGISTERED:
                _exchange(
                    backend, "DELETE", f"{SESSIONS_PATH}/{self.session_id}", None, timeout_s=EXIT_LIMIT_S
                )
            backend.renew()


def _exchange(
    backend: Backend, method: str, path: str, body: bytes | None, timeout_s: float = EXCHANGE_TIMEOUT_S
) -> tuple[int, bytes] | None:
    """Send one request; return status and body, or None if the backend does not answer."""
    from http.client import HTTPException

    connection = _connect(backend, timeout_s)
    headers = {"Content-Type": "application/json", "Connection": "close"}
    if backend.authorization:
        headers["Authorization"] = backend.authorization
    try:
        connection.request(method, backend.root + path, body, headers)
        response = connection.getresponse()
        return response.status, response.read(65536)
    except (OSError, HTTPException) as error:
        note("%s %s at %s: %s", method, path, backend.origin, error)
        return None
    finally:
        connection.close()


def _connect(backend: Backend, timeout_s: float) -> HTTPConnection:
    import http.client

    scheme, host, port = backend.origin
    if scheme == "https":
        return http.client.HTTPSConnection(host, port, timeout=timeout_s)
    return http.client.HTTPConnection(host, port, timeout=timeout_s)


class _Current:
    """The session in force: replaced in a forked child."""

    def __init__(self) -> None:
        self.session = Session()


_state = _Current()


def current_session() -> Session:
    """Return the session of this process."""
    return _state.session


def end_at_exit() -> None:
    """End the session, waiting for the backends for a second at most."""
    thread = _state.session.stop(is_final=True)
    if thread is not None:
        thread.join(EXIT_LIMIT_S)


def before_fork() -> None:
    """Stop the control thread, unless it is in an exchange: Python 3.12 warns at a fork beside threads."""
    thread = _state.session.stop(is_final=False)
    if thread is not None and thread is not threading.current_thread():
        thread.join(FORK_LIMIT_S)


def after_fork_in_parent() -> None:
    """Let the heartbeats go on."""
    _state.session.resume()


def after_fork_in_child() -> None:
    """Give the child a session of its own; call after the ids have been renewed."""
    for backend in backends.known():
        if backend.state != _backends.FOREIGN:
            backend.renew()
    _state.session = Session()
