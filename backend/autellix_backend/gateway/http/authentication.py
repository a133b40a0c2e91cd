"""Authentication: every request but a load balancer's needs a known API key, where there are tenants."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from autellix_backend.gateway.errors import InvalidKeyError
from autellix_backend.gateway.http.errors import error_response
from autellix_backend.gateway.requests import read_headers
from autellix_backend.gateway.tenancy.tenants import Tenants, set_tenant

OPEN_PATHS = frozenset({"/health", "/healthz", "/ping", "/readyz"})
"""Paths that load balancers ask without a key."""


class Authentication:
    """ASGI middleware that rejects requests without a known key; not installed without tenants."""

    def __init__(self, app: ASGIApp, tenants: Tenants, on_refusal: Callable[[], None]) -> None:
        self._app = app
        self._tenants = tenants
        self._on_refusal = on_refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on with its tenant, or answer it with 401."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            try:
                set_tenant(scope, self._tenants.authenticate(read_headers(scope)))
            except InvalidKeyError as error:
                self._on_refusal()
                await error_response(error, scope["path"])(scope, receive, send)
                return
        await self._app(scope, receive, send)
