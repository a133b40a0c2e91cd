"""Owns sessions: start, heartbeats and end, on one daemon thread, off the user's path.

Calls only put a step into the inbox. Every exchange with a backend happens on the control thread, with a
time limit and under no lock, so a dead backend costs the user's program nothing but the last, bounded wait
at its exit.

The process has a session of its own; `autellix.session` opens others. A session that nobody has used for a
while gets no more heartbeats: the backend then takes it for ended.
"""

from __future__ import annotations

import queue
import threading
import time

from autellix import _backends, _scope
from autellix._backends import Backend, backends
from autellix._exchange import Watch, exchange
from autellix._safely import note, safely
from autellix._strand import ids

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Step = Callable[[], None]

NEW = "new"
PENDING = "pending"
REGISTERED = "registered"
UNREACHABLE = "unreachable"

EXIT_LIMIT_S = 1.0
FORK_LIMIT_S = 0.05
SHORTEST_HEARTBEAT_S = 0.05
FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 60.0
IDLE_SESSION_S = 900.0
MAX_SESSIONS = 4096
CLIENT = "autellix-python"
# Answers that say nothing about what the server is: worth another attempt later.
PASSING_STATUSES = frozenset({401, 403, 408, 425, 429, 500, 502, 503, 504})


class Link:
    """One session at one backend; `state` is one of the four constants above."""

    __slots__ = ("failures", "heartbeat_due_s", "heartbeat_s", "retry_at_s", "state", "token", "watch")

    def __init__(self) -> None:
        self.state = NEW
        self.failures = 0
        self.retry_at_s = 0.0
        self.heartbeat_s = 0.0
        self.heartbeat_due_s = float("inf")
        self.token: str | None = None
        """What proves to the backend that the session is ours."""
        self.watch: Watch | None = None

    def needs_start(self, now_s: float) -> bool:
        """Tell whether a call should cause an attempt to start the session here."""
        return self.state == NEW or (self.state == UNREACHABLE and now_s >= self.retry_at_s)

    def mark_registered(self, heartbeat_s: float, token: str | None, now_s: float) -> None:
        """Record that the session has started here."""
        self.state, self.failures, self.token = REGISTERED, 0, token
        self.heartbeat_s, self.heartbeat_due_s = heartbeat_s, now_s + heartbeat_s

    def mark_unreachable(self, now_s: float) -> None:
        """Record a failed attempt; the next one waits twice as long as this one did."""
        pause_s = min(FIRST_PAUSE_S * 2**self.failures, LONGEST_PAUSE_S)
        self.state, self.failures = UNREACHABLE, self.failures + 1
        self.retry_at_s, self.heartbeat_due_s = now_s + pause_s, float("inf")

    def close(self) -> None:
        """Stop the heartbeats, and close what is open."""
        self.state, self.heartbeat_due_s = NEW, float("inf")
        if self.watch is not None:
            self.watch.close()


class Session:
    """A conversation with the backends that its calls went to."""

    __slots__ = ("ends", "links", "session_id", "used_s", "uses")

    def __init__(self, session_id: str | None = None, *, ends: bool = True) -> None:
        self.session_id = session_id or ids.make("session")
        self.ends = ends
        self.uses = 0
        self.used_s = time.monotonic()
        self.links: dict[Backend, Link] = {}

    def link(self, backend: Backend) -> Link:
        """Return how it stands with a backend."""
        link = self.links.get(backend)
        # setdefault: two threads that make their first call at once share one link.
        return link if link is not None else self.links.setdefault(backend, Link())


class Control:
    """The sessions of this process, and the thread that keeps them."""

    def __init__(self) -> None:
        self.session = Session()
        self._named: dict[str, Session] = {}
        self._lock = threading.Lock()
        self._inbox: queue.SimpleQueue[Step | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def open_session(self, session_id: str | None, *, ends: bool = True) -> Session:
        """Return the session to enter: the one of this id, else a fresh one."""
        with self._lock:
            session = self._named.get(session_id) if session_id else None
            if session is None:
                session = Session(session_id)
                while len(self._named) >= MAX_SESSIONS:
                    del self._named[next(iter(self._named))]
                self._named[session.session_id] = session
            session.ends = ends
            session.uses += 1
            return session

    def close_session(self, session: Session) -> None:
        """Leave a session; its last use ends it, unless further turns may follow. Never blocks."""
        with self._lock:
            session.uses -= 1
            is_over = session.uses <= 0 and session.ends
            if is_over:
                self._named.pop(session.session_id, None)
        if is_over and session.links:
            self._post(lambda: self._end(session, list(session.links)))

    def touch(self, backend: Backend, session: Session) -> Link:
        """Note a call to a backend; start the session there if that is due. Never blocks."""
        link = session.link(backend)
        now_s = session.used_s = time.monotonic()
        if link.state != REGISTERED and link.needs_start(now_s):
            link.state = PENDING
            self._post(lambda: self._start(backend, session, link))
        elif link.state == REGISTERED and link.heartbeat_due_s == float("inf"):
            # It had been idle for long: it may be lost at the backend, whose answer will tell.
            link.heartbeat_due_s = now_s
            self._post(self._send_heartbeats)
        elif self._thread is None and link.state == REGISTERED:
            # Stopped for a fork: the heartbeats go on with the next call.
            self._ensure_thread()
        return link

    def end_program(self, backend: Backend, program_id: str) -> None:
        """Tell a backend that a program is over. Never blocks."""
        self._post(lambda: self._end_program(backend, program_id))

    def stop(self, *, is_final: bool) -> threading.Thread | None:
        """Ask the control thread to finish, after ending the sessions if this is final; return the thread."""
        thread, self._thread = self._thread, None
        # A successor gets an inbox of its own, or it would take what is meant for this thread.
        inbox, self._inbox = self._inbox, queue.SimpleQueue()
        if thread is not None:
            if is_final:
                known = backends.known()
                inbox.put(lambda: self._end_all(known))
            inbox.put(None)
        return thread

    def leave(self, left: list[Backend]) -> None:
        """End the sessions at backends that get no more calls. Never blocks."""
        if any(backend in session.links for session in self._sessions() for backend in left):
            self._post(lambda: self._end_all(left))

    def resume(self) -> None:
        """Continue the heartbeats after a fork in the parent."""
        if any(link.state == REGISTERED for session in self._sessions() for link in session.links.values()):
            self._ensure_thread()

    def close_watches(self) -> None:
        """Close this process's ends of what its parent watches with."""
        for session in self._sessions():
            for link in session.links.values():
                link.close()

    def _sessions(self) -> list[Session]:
        return [self.session, *list(self._named.values())]

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

    def _links(self) -> Iterable[tuple[Session, Backend, Link]]:
        for session in self._sessions():
            for backend, link in list(session.links.items()):
                yield session, backend, link

    def _pause_s(self) -> float | None:
        due_s = min((link.heartbeat_due_s for _, _, link in self._links()), default=float("inf"))
        return None if due_s == float("inf") else max(0.0, due_s - time.monotonic())

    def _start(self, backend: Backend, session: Session, link: Link) -> None:
        from autellix_wire import SESSIONS_PATH
        from autellix_wire.sessions import InvalidBodyError, SessionStart, SessionStarted

        body = SessionStart(session_id=session.session_id, client=CLIENT).to_bytes()
        answer = exchange(backend, "POST", SESSIONS_PATH, body)
        now_s = time.monotonic()
        if answer is None or answer[0] in PASSING_STATUSES:
            link.mark_unreachable(now_s)
            backend.decide(backend.state)
            return
        try:
            if answer[0] not in (200, 201):
                raise InvalidBodyError(f"the answer is {answer[0]}")
            started = SessionStarted.from_bytes(answer[1])
        except InvalidBodyError as error:
            note("%s is no Autellix backend: %s", backend.origin, error)
            link.close()
            backend.decide(_backends.FOREIGN)
            return
        link.mark_registered(max(started.heartbeat_s, SHORTEST_HEARTBEAT_S), started.token, now_s)
        backend.decide(_backends.KNOWN)
        if session is self.session:
            link.watch = link.watch or Watch(backend, f"{SESSIONS_PATH}/{session.session_id}/watch")
            link.watch.keep()

    def _send_heartbeats(self) -> None:
        from urllib.parse import quote

        from autellix_wire import SESSIONS_PATH

        for session, backend, link in self._links():
            now_s = time.monotonic()
            if link.heartbeat_due_s > now_s:
                continue
            if session is not self.session and not session.uses and now_s - session.used_s > IDLE_SESSION_S:
                link.heartbeat_due_s = float("inf")
                continue
            link.heartbeat_due_s = now_s + link.heartbeat_s
            path = f"{SESSIONS_PATH}/{quote(session.session_id, safe='')}/heartbeat"
            answer = exchange(backend, "POST", path, b"{}")
            if answer is not None and answer[0] == 404:
                # The backend was restarted, or took this session for lost.
                self._start(backend, session, link)
            elif link.watch is not None:
                link.watch.keep()

    def _end_program(self, backend: Backend, program_id: str) -> None:
        from urllib.parse import quote

        from autellix_wire import PROGRAMS_PATH

        if backend.state == _backends.KNOWN:
            exchange(backend, "DELETE", f"{PROGRAMS_PATH}/{quote(program_id, safe='')}", None)

    def _end_all(self, ended: list[Backend]) -> None:
        deadline_s = time.monotonic() + EXIT_LIMIT_S
        for session in self._sessions():
            if time.monotonic() < deadline_s:
                self._end(session, [backend for backend in ended if backend in session.links])

    def _end(self, session: Session, ended: list[Backend]) -> None:
        from urllib.parse import quote

        from autellix_wire import SESSIONS_PATH

        for backend in ended:
            link = session.links.pop(backend)
            if link.state == REGISTERED:
                path = f"{SESSIONS_PATH}/{quote(session.session_id, safe='')}"
                exchange(backend, "DELETE", path, None, timeout_s=EXIT_LIMIT_S)
            link.close()


class _Current:
    """The control in force: replaced in a forked child."""

    def __init__(self) -> None:
        self.control = Control()


_state = _Current()


def control() -> Control:
    """Return the control of this process."""
    return _state.control


def current_session() -> Session:
    """Return the session of this process."""
    return _state.control.session


def end_at_exit() -> None:
    """End the sessions, waiting for the backends for a second at most."""
    thread = _state.control.stop(is_final=True)
    if thread is not None:
        thread.join(EXIT_LIMIT_S)


def before_fork() -> None:
    """Stop the control thread, unless it is in an exchange: Python 3.12 warns at a fork beside threads."""
    thread = _state.control.stop(is_final=False)
    if thread is not None and thread is not threading.current_thread():
        thread.join(FORK_LIMIT_S)


def after_fork_in_parent() -> None:
    """Let the heartbeats go on."""
    _state.control.resume()


def after_fork_in_child() -> None:
    """Give the child a session of its own; call after the ids have been renewed."""
    _state.control.close_watches()
    for backend in backends.known():
        if backend.state == _backends.ASKED:
            backend.renew()
    _state.control = Control()
