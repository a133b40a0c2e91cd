"""Endpoints that hand a request to the engine as it is: they make no call."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from autellix_backend.gateway.requests import read_headers
from autellix_backend.gateway.upstream import Upstream, request_headers, response_headers

MODELS_PATH = "/v1/models"


class ModelsEndpoint:
    """ASGI app that passes the list of models through."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Answer one request."""
        response = await self._upstream.get(MODELS_PATH, request_headers(read_headers(scope)))
        content = await self._upstream.read(response)
        headers = [*response_headers(response.headers), (b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": content})
