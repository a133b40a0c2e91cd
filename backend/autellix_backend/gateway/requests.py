"""An ASGI request: its headers, and its client's disconnect."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive, Scope

from autellix_backend.gateway.errors import GatewayError

_HEADERS = "autellix.headers"
"""Key of the decoded headers in a request's state."""


def read_headers(scope: Scope) -> dict[str, str]:
    """Return a request's headers by their lower-case names, decoded once for all who read them."""
    state = scope.setdefault("state", {})
    headers: dict[str, str] | None = state.get(_HEADERS)
    if headers is None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        state[_HEADERS] = headers
    return headers


def client_of(scope: Scope) -> dict[str, str]:
    """Return the address that a request came from, and the one that a proxy names, for logs."""
    address = scope.get("client")
    named = read_headers(scope).get("x-forwarded-for", "")
    return {"client": address[0] if address else "a socket", "forwarded_for": named}


async def run_while_connected(work: Coroutine[Any, Any, object], receive: Receive) -> None:
    """Run work until it ends or the client of a request disconnects, and cancel it then.

    Raises:
        CancelledError: if this is cancelled before the work has ended; the work is cancelled too.
    """
    task = asyncio.current_task()
    assert task is not None
    is_gone = False

    async def watch() -> None:
        nonlocal is_gone
        while (await receive())["type"] != "http.disconnect":
            pass
        is_gone = True
        task.cancel()

    # The work has no task of its own: at hundreds of calls a second each task counts.
    watching = asyncio.create_task(watch())
    cancellations = task.cancelling()
    try:
        await work
    except (asyncio.CancelledError, GatewayError):
        # A client that has gone reads no error.
        if not is_gone or task.cancelling() > cancellations + 1:
            raise
    finally:
        watching.cancel()
        if is_gone:
            task.uncancel()
