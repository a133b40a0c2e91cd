"""Describes the client's state in this process, for people who wonder why a call is in no program."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from autellix._instrument import switch
from autellix._propagation import propagation
from autellix._scopes.api import warn_of_old
from autellix._sessions.backends import backends
from autellix._sessions.keeper import keeper


class _Subscriptable:
    def __getitem__(self, name: str) -> Any:
        warn_of_old(f'autellix.status()["{name}"]', f"the attribute `{name}`")
        return getattr(self, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStatus(_Subscriptable):
    """A session of this process at a backend."""

    __module__ = "autellix"

    id: str
    is_running: bool
    failures: int
    """Failed requests since the last success."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendStatus(_Subscriptable):
    """A backend that calls go to."""

    __module__ = "autellix"

    has_answered: bool
    """Whether the answer to a call carried the mark of a gateway."""
    sessions: list[SessionStatus]


@dataclass(frozen=True, slots=True, kw_only=True)
class Status(_Subscriptable):
    """The client's state in this process."""

    __module__ = "autellix"

    is_on: bool
    has_reached: bool
    """Whether a call has carried an identity."""
    configured: list[str]
    """The addresses that get headers; empty for those that answer as Autellix."""
    backends: dict[str, BackendStatus]
    """By address."""
    libraries: list[str]
    """The patched modules that are loaded."""
    missing: list[str]
    """Methods that the client would patch, and that the loaded versions lack."""


def describe() -> Status:
    """Return what `autellix.status` documents."""
    sessions: dict[str, list[SessionStatus]] = {}
    for _, entry in keeper.registrations():
        sessions.setdefault(entry.account.backend.url, []).append(
            SessionStatus(id=entry.session_id, is_running=entry.is_running, failures=entry.failures)
        )
    return Status(
        is_on=propagation.is_on,
        has_reached=backends.has_reached,
        configured=backends.configured(),
        backends={
            backend.url: BackendStatus(
                has_answered=backend.has_answered, sessions=sessions.get(backend.url, [])
            )
            for backend in backends.known()
        },
        libraries=sorted(name for name in switch.INSTRUMENTORS if name in sys.modules),
        missing=switch.missing_methods(),
    )
