"""Requests with two lengths, whose end a proxy in front may see elsewhere than the server."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from autellix_backend.gateway.errors import InvalidRequestError
from autellix_backend.gateway.http.errors import error_response
from autellix_backend.gateway.requests import read_headers


class OneLength:
    """ASGI middleware that refuses a request with two lengths, and ends its connection (RFC 9112, 6.3)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on, or answer it with 400."""
        if scope["type"] == "http" and {"content-length", "transfer-encoding"} <= read_headers(scope).keys():
            problem = "Content-Length and Transfer-Encoding: are both there; expected one of them"
            error = InvalidRequestError(problem, headers={"connection": "close"})
            await error_response(error, scope["path"])(scope, receive, send)
            return
        await self._app(scope, receive, send)
