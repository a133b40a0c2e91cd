"""Headers on responses: the version on each, and the workers whose part is missing.

Clients annotate their calls to hosts that send the version.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autellix_wire.headers import VERSION

_HEADER = (VERSION.lower().encode(), importlib.metadata.version("autellix").encode())
MISSING_WORKERS = "X-Autellix-Missing-Workers"
_MISSING_KEY = "autellix.missing_workers"


def note_missing(scope: Scope, workers: Iterable[int]) -> None:
    """Record workers that did not answer in time, so that the response names them."""
    scope.setdefault(_MISSING_KEY, set()).update(workers)


class Mark:
    """ASGI middleware that adds the version to each response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), _HEADER, *_missing(scope)]
            await send(message)

        await self._app(scope, receive, send_marked)


def _missing(scope: Scope) -> list[tuple[bytes, bytes]]:
    workers: set[int] = scope.get(_MISSING_KEY, set())
    if not workers:
        return []
    return [(MISSING_WORKERS.lower().encode(), ", ".join(map(str, sorted(workers))).encode())]
