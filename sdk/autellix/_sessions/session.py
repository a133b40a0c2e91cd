"""Defines a session and its registration at each backend."""

from __future__ import annotations

import time

from autellix._ids import ids

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autellix._sessions.backends import Backend
    from autellix._sessions.exchange import SessionWatch

NEW = "new"
PENDING = "pending"
REGISTERED = "registered"
UNREACHABLE = "unreachable"

FIRST_RETRY_S = 5.0
MAX_RETRY_S = 60.0
NEVER_S = float("inf")


class Registration:
    """A session at one backend; `state` is NEW, PENDING, REGISTERED or UNREACHABLE."""

    __slots__ = ("failures", "heartbeat_due_s", "heartbeat_s", "retry_at_s", "state", "token", "watch")

    def __init__(self) -> None:
        self.state = NEW
        self.failures = 0
        self.retry_at_s = 0.0
        self.heartbeat_s = 0.0
        self.heartbeat_due_s = NEVER_S
        self.token: str | None = None
        """The session token: it proves to the backend that the session is ours."""
        self.watch: SessionWatch | None = None

    def is_due(self, now_s: float) -> bool:
        """Return whether the next call should try to register the session."""
        return self.state == NEW or (self.state == UNREACHABLE and now_s >= self.retry_at_s)

    def mark_registered(self, heartbeat_s: float, token: str | None, now_s: float) -> None:
        self.state, self.failures, self.token = REGISTERED, 0, token
        self.heartbeat_s, self.heartbeat_due_s = heartbeat_s, now_s + heartbeat_s

    def mark_unreachable(self, now_s: float) -> None:
        """Record a failed attempt and double the time to the next one."""
        retry_s = min(FIRST_RETRY_S * 2**self.failures, MAX_RETRY_S)
        self.state, self.failures = UNREACHABLE, self.failures + 1
        self.retry_at_s, self.heartbeat_due_s = now_s + retry_s, NEVER_S

    def close(self) -> None:
        self.state, self.heartbeat_due_s = NEW, NEVER_S
        if self.watch is not None:
            self.watch.close()


class ClientSession:
    """A session, and its registrations at the backends that its calls went to."""

    __slots__ = ("ends", "open_scopes", "registrations", "session_id", "used_s")

    def __init__(self, session_id: str | None = None) -> None:
        self.session_id = session_id or ids.make("session")
        self.ends = True
        self.open_scopes = 0
        self.used_s = time.monotonic()
        self.registrations: dict[Backend, Registration] = {}

    def registration(self, backend: Backend) -> Registration:
        """Return the session's registration at a backend."""
        found = self.registrations.get(backend)
        # setdefault: two threads that make their first call at once share one registration.
        return found if found is not None else self.registrations.setdefault(backend, Registration())
