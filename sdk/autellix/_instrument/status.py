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
    for _, registration in keeper.registrations():
        sessions.setdefault(_url(registration.account.backend.origin), []).append(
            {"id": registration.session_id, "state": registration.state, "failures": registration.failures}
        )
    found = {
        _url(backend.origin): {"state": backend.state, "sessions": sessions.get(_url(backend.origin), [])}
        for backend in backends.admitted()
    }
    return {
        "is_on": propagation.is_on,
        "has_reached": backends.has_reached,
        "configured": [_url(origin) for origin in backends.configured()],
        "backends": found,
        "libraries": sorted(name for name in switch.INSTRUMENTORS if name in sys.modules),
        "missing": switch.missing_methods(),
    }


def _url(origin: tuple[str, str, int]) -> str:
    scheme, host, port = origin
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
