"""The version as a header on each response: clients annotate their calls to hosts that send it."""

from __future__ import annotations

import importlib.metadata

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autellix_wire.headers import VERSION

VERSION_HEADER = (VERSION.lower().encode(), importlib.metadata.version("autellix").encode())


class VersionHeader:
    """ASGI middleware that adds the version to each response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_version(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), VERSION_HEADER]
            await send(message)

        await self._app(scope, receive, send_with_version)
