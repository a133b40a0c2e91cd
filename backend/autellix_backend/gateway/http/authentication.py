"""Authentication: every request but a load balancer's needs a known API key, where there are tenants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from autellix_backend.gateway.errors import GatewayError, InvalidKeyError, TooManyOpenRequestsError
from autellix_backend.gateway.fairness import FairStart
from autellix_backend.gateway.http.errors import error_response
from autellix_backend.gateway.requests import client_of, read_headers
from autellix_backend.gateway.tenancy.tenants import Tenants, set_tenant
from autellix_backend.observe.operator_log import AuditLog

OPEN_PATHS = frozenset({"/health", "/healthz", "/ping", "/readyz"})
"""Paths that load balancers ask without a key."""

MAX_REQUESTS = 65_536
"""Open requests of all tenants that the server takes at most, where no limit of open files is known."""


class Authentication:
    """ASGI middleware that rejects requests without a known key; not installed without tenants.

    It bounds each tenant's open requests to half of what the server takes, so that none can lock the others
    out. Requests start in turns, those without a known key in one turn together.
    """

    def __init__(
        self,
        app: ASGIApp,
        tenants: Tenants,
        on_refusal: Callable[[str, str], None],
        audit: AuditLog,
        *,
        max_requests: int,
        is_page_path: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._app = app
        self._is_page_path = is_page_path
        self._audit = audit
        self._tenants = tenants
        self._on_refusal = on_refusal
        self._max_requests = max(1, max_requests // 2)
        self._open: Counter[str] = Counter()
        self._starts = FairStart()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on with its tenant, or answer it with 401 or 503."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._is_page_path(scope["path"]):
            await self._app(scope, receive, send)
            return
        try:
            tenant = self._tenants.authenticate(read_headers(scope))
        except InvalidKeyError as error:
            await self._starts.wait("")
            self._audit.refusal("refused a key", path=scope["path"], **client_of(scope))
            await self._refuse(error, "", scope, receive, send)
            return
        if self._open[tenant.name] >= self._max_requests:
            full = TooManyOpenRequestsError(self._max_requests)
            await self._refuse(full, tenant.name, scope, receive, send)
            return
        set_tenant(scope, tenant)
        self._open[tenant.name] += 1
        try:
            await self._starts.wait(tenant.name)
            await self._app(scope, receive, send)
        finally:
            self._open[tenant.name] -= 1

    async def _refuse(
        self, error: GatewayError, tenant: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self._on_refusal(tenant, error.code)
        await error_response(error, scope["path"])(scope, receive, send)
