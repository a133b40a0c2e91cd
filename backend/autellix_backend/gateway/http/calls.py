"""The endpoints that make calls: identity in, a receipt out, and nothing else changed.

This is the hot path, so it speaks ASGI directly: no model classes, no middleware.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.types import Receive, Scope, Send

from autellix_backend.gateway.calls.body import CallBody, parse_body
from autellix_backend.gateway.calls.body_limits import bounded
from autellix_backend.gateway.calls.dialects import Dialect
from autellix_backend.gateway.calls.exchange import Exchange
from autellix_backend.gateway.calls.registry import CallRegistry
from autellix_backend.gateway.engines.pool import EnginePool
from autellix_backend.gateway.engines.router import Router
from autellix_backend.gateway.http.requests import ClientGoneError, read_body, read_headers, read_request
from autellix_backend.gateway.http.watches import disconnected
from autellix_backend.gateway.identity.identity import Placement, read_identity
from autellix_backend.gateway.identity.session_tokens import SessionTokens
from autellix_backend.gateway.tenancy.tenants import Tenants


class CallEndpoint:
    """ASGI app of one path that makes calls."""

    def __init__(
        self,
        dialect: Dialect,
        pool: EnginePool,
        router: Router,
        desk: CallRegistry,
        guard: SessionTokens,
        placement: Placement,
        tenants: Tenants,
        *,
        max_body_bytes: int,
    ) -> None:
        self._dialect = dialect
        self._pool = pool
        self._router = router
        self._desk = desk
        self._guard = guard
        self._placement = placement
        self._tenants = tenants
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers = read_headers(scope)
        try:
            data = await read_body(headers, receive, self._max_body_bytes)
        except ClientGoneError:
            return
        tenant = self._tenants.of(scope)
        body = bounded(parse_body(data, self._dialect), tenant.limits, self._dialect)
        claimed = read_identity(headers, body.fields, self._desk.new_id).under(tenant)
        admitted = await self._guard.admit(claimed, headers, tenant)
        identity = self._placement.place(admitted, body.fields, tenant)
        # Before the call begins: whatever fails from then on has to settle it.
        request = read_request(self._dialect.path, headers, body.fields)
        assignment = self._router.assign(identity.program, request.model, len(data))
        try:
            call = await self._desk.begin(
                tenant, identity, body.record_count, len(data), engine=assignment.handle.name
            )
            call.request = request
            exchange = Exchange(self._pool, self._router, assignment, self._desk, call, self._dialect, send)
            await self._watch(exchange, headers, body, receive)
        finally:
            self._router.release(assignment)

    async def _watch(
        self, exchange: Exchange, headers: Mapping[str, str], body: CallBody, receive: Receive
    ) -> None:
        """Run the exchange until it ends or the client goes; either way the call is settled afterwards."""
        work = asyncio.create_task(exchange.run(headers, body))
        gone = asyncio.create_task(disconnected(receive))
        is_cut_off = False
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            # The server ends and has waited long enough for this call; its client still waits for a word.
            is_cut_off = True
        gone.cancel()
        is_done = work.done()
        if not is_done:
            work.cancel()
            await asyncio.wait((work,))
        await exchange.close()
        if is_done:
            work.result()
        elif is_cut_off:
            await exchange.tell_end()
