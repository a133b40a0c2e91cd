"""Defines a session and its registrations: one for each API key at each backend."""

from __future__ import annotations

import time

from autellix._ids import ids
from autellix._open_scopes import OpenScopes
from autellix._sessions.backends import LOOPBACK
from autellix_wire.headers import SESSION_ID, SESSION_TOKEN
from autellix_wire.paths import SESSIONS_PATH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autellix._sessions.backends import Account, Backend
    from autellix._sessions.exchange import SessionWatch

NEW = "new"
PENDING = "pending"
REGISTERED = "registered"
UNREACHABLE = "unreachable"

FIRST_RETRY_S = 0.5
MAX_RETRY_S = 5.0
NEVER_S = float("inf")
PROOF_VARIABLE = "AUTELLIX_SESSION_PROOF"
MAX_ACCOUNTS = 256
"""Registrations of one session: keys that change often must not fill the memory."""


class Registration:
    """A session at one backend by one API key; `state` is NEW, PENDING, REGISTERED or UNREACHABLE."""

    def __init__(self, account: Account, session_id: str) -> None:
        self.account = account
        self.session_id = session_id
        self.state = NEW
        self.failures = 0
        self.is_foreign = False
        """Whether the last answer was not that of an Autellix backend."""
        self.retry_at_s = 0.0
        self.heartbeat_s = 0.0
        self.heartbeat_due_s = NEVER_S
        self.used_s = 0.0
        self.token: str | None = None
        """The session token: it proves to the backend that the session is ours."""
        self.watch: SessionWatch | None = None

    def is_due(self, now_s: float) -> bool:
        """Return whether the next call should try to register the session."""
        return self.state == NEW or (self.state == UNREACHABLE and now_s >= self.retry_at_s)

    def mark_registered(self, heartbeat_s: float, token: str | None, now_s: float) -> None:
        self.state, self.failures, self.token = REGISTERED, 0, token
        self.is_foreign = False
        self.heartbeat_s, self.heartbeat_due_s = heartbeat_s, now_s + heartbeat_s

    def mark_unreachable(self, now_s: float, *, is_foreign: bool = False) -> None:
        """Record a failed attempt and double the time to the next one."""
        retry_s = min(FIRST_RETRY_S * 2 ** min(self.failures, 10), MAX_RETRY_S)
        self.state, self.failures, self.is_foreign = UNREACHABLE, self.failures + 1, is_foreign
        self.retry_at_s, self.heartbeat_due_s = now_s + retry_s, NEVER_S

    def proof(self) -> dict[str, str]:
        """Return the headers that name the session and prove that it is ours."""
        return {} if self.token is None else {SESSION_ID: self.session_id, SESSION_TOKEN: self.token}

    def path(self, suffix: str = "") -> str:
        """Return the path of the session in the sessions API."""
        from urllib.parse import quote

        return f"{SESSIONS_PATH}/{quote(self.session_id, safe='')}{suffix}"

    def close(self) -> None:
        self.state, self.heartbeat_due_s = NEW, NEVER_S
        if self.watch is not None:
            self.watch.close()


def session_proof(backend: Backend) -> str:
    """Return the secret that proves to a strict backend that a session is ours; child processes inherit it.

    A host that the user has not named gets a secret of its own, which proves nothing to another host.
    """
    import os

    secret = os.environ.get(PROOF_VARIABLE)
    if not secret:
        secret = os.environ.setdefault(PROOF_VARIABLE, os.urandom(16).hex())
    if backend.is_configured:
        return secret
    _, host, port = backend.origin
    import hashlib

    # A child may call this machine by another of its names.
    host = "localhost" if host in LOOPBACK else host
    return hashlib.sha256(f"{secret} {host}:{port}".encode()).hexdigest()


class ClientSession:
    """A session, and its registrations at the backends that its calls went to."""

    __slots__ = ("ends", "has_chosen_id", "registrations", "scopes", "session_id")

    def __init__(self, session_id: str | None = None) -> None:
        self.session_id = session_id or ids.make("session")
        self.has_chosen_id = session_id is not None
        self.ends = True
        self.scopes = OpenScopes()
        self.registrations: dict[Account, Registration] = {}

    def registration(self, account: Account) -> Registration:
        """Return the session's registration at a backend with an API key."""
        if (found := self.registrations.get(account)) is not None:
            return found
        while len(self.registrations) >= MAX_ACCOUNTS:
            self._drop_oldest()
        # A session belongs to one key: with a second one it needs another id, unless the user has chosen it.
        is_first = self.has_chosen_id or not any(
            other.backend is account.backend for other in list(self.registrations)
        )
        session_id = self.session_id if is_first else ids.make("session")
        # setdefault: two threads that make their first call at once share one registration.
        return self.registrations.setdefault(account, Registration(account, session_id))

    def _drop_oldest(self) -> None:
        entries = sorted(self.registrations.values(), key=lambda entry: entry.used_s)
        for registration in entries[: MAX_ACCOUNTS // 4]:
            self.registrations.pop(registration.account, None)
            registration.close()

    @property
    def used_s(self) -> float:
        """When its last call was made."""
        return max((entry.used_s for entry in list(self.registrations.values())), default=time.monotonic())
