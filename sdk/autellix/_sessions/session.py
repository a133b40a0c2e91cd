"""Defines a session and its registrations: one for each account at each backend."""

from __future__ import annotations

from autellix._ids import ids
from autellix._open_scopes import OpenScopes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autellix._sessions.backends import Account

NEVER_S = float("inf")
MAX_REGISTRATIONS = 256
"""Of one session: keys that change often must not fill the memory."""


class Registration:
    """A session at one backend by one account."""

    __slots__ = ("account", "due_s", "failures", "is_running", "session_id", "used_s")

    def __init__(self, account: Account, session_id: str) -> None:
        self.account = account
        self.session_id = session_id
        self.due_s = NEVER_S
        """When the backend is next told that the session lives."""
        self.is_running = False
        """Whether the backend has the session, as far as we know."""
        self.failures = 0
        """Heartbeats without success since the last one that had it."""
        self.used_s = 0.0
        """When the backend last answered one of its calls."""


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
        """Return the session's registration at a backend by an account."""
        if (found := self.registrations.get(account)) is not None:
            return found
        if len(self.registrations) >= MAX_REGISTRATIONS:
            self.drop(min(list(self.registrations.values()), key=lambda entry: entry.used_s))
        # A session belongs to one account: a second one needs another id, unless the user has chosen it.
        is_first = account.backend not in [other.backend for other in list(self.registrations)]
        session_id = self.session_id if self.has_chosen_id or is_first else ids.make("session")
        # setdefault: two threads that make their first call at once share one registration.
        return self.registrations.setdefault(account, Registration(account, session_id))

    def renew(self, registration: Registration) -> None:
        """Give a registration another id: its session belongs to the key that the account had before."""
        if not self.has_chosen_id:
            registration.session_id = ids.make("session")

    def drop(self, registration: Registration) -> None:
        """Forget a registration, and with it the key."""
        self.registrations.pop(registration.account, None)
