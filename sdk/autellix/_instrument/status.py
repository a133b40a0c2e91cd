"""Describes the client's state in this process, for people who wonder why a call is in no program."""

from __future__ import annotations

import sys
from typing import Any

from autellix._instrument import switch
from autellix._propagation import propagation
from autellix._sessions.backends import backends
from autellix._sessions.keeper import keeper


def describe() -> dict[str, Any]:
    """Return what `autellix.status` documents."""
    sessions: dict[str, list[dict[str, Any]]] = {}
    for _, entry in keeper.registrations():
        sessions.setdefault(entry.account.backend.url, []).append(
            {"id": entry.session_id, "is_running": entry.is_running, "failures": entry.failures}
        )
    found = {
        backend.url: {"has_answered": backend.has_answered, "sessions": sessions.get(backend.url, [])}
        for backend in backends.known()
    }
    return {
        "is_on": propagation.is_on,
        "has_reached": backends.has_reached,
        "configured": backends.configured(),
        "backends": found,
        "libraries": sorted(name for name in switch.INSTRUMENTORS if name in sys.modules),
        "missing": switch.missing_methods(),
    }
