"""The endpoints that make calls.

This is the hot path, so it speaks ASGI directly: no model classes, no middleware.
"""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from autellix_backend.gateway.calls.dialects import Dialect
from autellix_backend.gateway.calls.exchange import CallPath
from autellix_backend.gateway.http.requests import ClientGoneError, read_body, read_headers
from autellix_backend.gateway.tenancy.tenants import Tenants


class CallEndpoint:
    """ASGI app of one path that makes calls."""

    def __init__(self, dialect: Dialect, path: CallPath, tenants: Tenants, *, max_body_bytes: int) -> None:
        self._dialect = dialect
        self._path = path
        self._tenants = tenants
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers = read_headers(scope)
        try:
            data = await read_body(headers, receive, self._max_body_bytes)
        except ClientGoneError:
            return
        await self._path.serve(self._dialect, self._tenants.of(scope), headers, data, receive, send)
