"""Authentication: every request but a load balancer's needs a known API key, where there are tenants."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from autellix_backend.gateway.errors import GatewayError, InvalidKeyError, TooManyConnectionsError
from autellix_backend.gateway.http.errors import error_response
from autellix_backend.gateway.http.page import is_page_path
from autellix_backend.gateway.http.protocol import set_owner
from autellix_backend.gateway.http.turns import RequestTurns
from autellix_backend.gateway.requests import read_headers
from autellix_backend.gateway.tenancy.tenants import Tenants, set_tenant

OPEN_PATHS = frozenset({"/health", "/healthz", "/ping", "/readyz"})
"""Paths that load balancers ask without a key."""


_KEY_HEADERS = re.compile(rb"\r\n(authorization|x-api-key):([^\r\n]*)", re.IGNORECASE)


def owner_of(tenants: Tenants, first: bytes) -> str:
    """Return the name of the tenant whose key the first bytes of a connection carry, "" if there is none."""
    head = first.partition(b"\r\n\r\n")[0]
    headers = {
        name.decode("latin-1").lower(): value.decode("latin-1") for name, value in _KEY_HEADERS.findall(head)
    }
    try:
        return tenants.authenticate(headers).name
    except InvalidKeyError:
        return ""


class Authentication:
    """ASGI middleware that rejects requests without a known key; not installed without tenants.

    It bounds the requests of each tenant too: with half of all connections, none can lock the others out, and
    they begin in turns, those without a known key in one turn together.
    """

    def __init__(
        self, app: ASGIApp, tenants: Tenants, on_refusal: Callable[[str, str], None], *, max_connections: int
    ) -> None:
        self._app = app
        self._tenants = tenants
        self._on_refusal = on_refusal
        self._max_requests = max(1, max_connections // 2)
        self._open: Counter[str] = Counter()
        self._turns = RequestTurns()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on with its tenant, or answer it with 401 or 503."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or is_page_path(scope["path"]):
            await self._app(scope, receive, send)
            return
        try:
            tenant = self._tenants.authenticate(read_headers(scope))
        except InvalidKeyError as error:
            if await self._turns.begin("", scope):
                await self._refuse(error, "", scope, receive, send)
            return
        if self._open[tenant.name] >= self._max_requests:
            full = TooManyConnectionsError(self._max_requests, "the tenant")
            await self._refuse(full, tenant.name, scope, receive, send)
            return
        set_tenant(scope, tenant)
        set_owner(scope, tenant.name)
        self._open[tenant.name] += 1
        try:
            if await self._turns.begin(tenant.name, scope):
                await self._app(scope, receive, send)
        finally:
            self._open[tenant.name] -= 1

    async def _refuse(
        self, error: GatewayError, tenant: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self._on_refusal(tenant, error.code)
        await error_response(error, scope["path"])(scope, receive, send)
