"""The gateway as an ASGI app: its routes and its lifespan."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from functools import partial

from fastapi import FastAPI

from autellix_backend.engines.base import Engine
from autellix_backend.gateway.calls.dialects import DIALECTS
from autellix_backend.gateway.calls.exchange import CallEndpoint
from autellix_backend.gateway.errors import InvalidKeyError
from autellix_backend.gateway.http import admin, engines, events, programs, sessions
from autellix_backend.gateway.http.authentication import Authentication
from autellix_backend.gateway.http.errors import install_error_handlers
from autellix_backend.gateway.http.openapi import AsgiRoute, describe_route, head_routes
from autellix_backend.gateway.http.passthrough import PassthroughEndpoint
from autellix_backend.gateway.tenancy.tenants import Tenants
from autellix_backend.gateway.wiring import Components, make_components
from autellix_backend.settings import Settings
from autellix_backend.stores.base import ProgramStore

REAP_PERIOD_S = 1.0
ROUTERS = (admin.router, engines.router, events.router, programs.router, sessions.router)

logger = logging.getLogger(__name__)


def create_app(
    settings: Settings,
    *engines: Engine,
    store: ProgramStore | None = None,
    tenants: Tenants | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> FastAPI:
    """Build the gateway in front of engines, which the caller starts and stops.

    While the app runs, `app.state.pool` supervises the engines and restarts them; close it before stopping
    them.

    Args:
        settings: The tree of settings.
        engines: The engines that answer the calls, in the operator's order; more may join later.
        store: The store of programs and sessions; that of the settings if None.
        tenants: The tenants; those of the settings if None.
        clock: Monotonic seconds.

    Raises:
        SettingsError: if the recording or the call log cannot be written, the tenants file is malformed, or
            the extra for traces or for Redis is not installed.
    """
    parts = make_components(settings, engines, store=store, tenants=tenants, clock=clock)
    app = FastAPI(
        title="Autellix", openapi_url=None, lifespan=partial(_lifespan, parts), redirect_slashes=False
    )
    install_error_handlers(app)
    if parts.tenants.has_keys:
        on_refusal = parts.metrics.refusals.labels("", InvalidKeyError.code).inc
        app.add_middleware(Authentication, tenants=parts.tenants, on_refusal=on_refusal)
    app.router.routes.extend(_engine_routes(parts))
    for router in ROUTERS:
        app.router.routes.extend(router.routes)
    app.router.routes.extend(head_routes(app))
    app.state.components = parts
    app.state.watches = parts.watches
    app.state.tenants = parts.tenants
    app.state.pool = parts.pool
    app.state.router = parts.router
    app.state.limiter = parts.limiter
    app.state.registry = parts.registry
    return app


@contextlib.asynccontextmanager
async def _lifespan(parts: Components, _app: FastAPI) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        # Last at the end, when every call is settled.
        if parts.recorder is not None:
            stack.push_async_callback(parts.recorder.close)
        parts.exporters.open()
        stack.push_async_callback(asyncio.to_thread, parts.exporters.close)
        await parts.store.open()
        stack.push_async_callback(parts.store.close)
        parts.pool.open()
        stack.push_async_callback(parts.pool.close)
        reaper = asyncio.create_task(_reap(parts))
        stack.push_async_callback(_cancel, reaper)
        # First at the end: calls that the server cancelled still get their reports.
        stack.push_async_callback(parts.registry.drained)
        yield


def _engine_routes(parts: Components) -> list[AsgiRoute]:
    max_body_bytes = parts.settings.gateway.max_body_bytes
    serve_call = partial(
        CallEndpoint,
        tenants=parts.tenants,
        tokens=parts.tokens,
        resolver=parts.resolver,
        router=parts.router,
        registry=parts.registry,
        max_body_bytes=max_body_bytes,
    )
    passthrough = PassthroughEndpoint(parts.pool, max_body_bytes=max_body_bytes)
    return [
        AsgiRoute(
            dialect.path,
            serve_call(dialect) if dialect.makes_call else passthrough,
            **describe_route(dialect),
        )
        for dialect in DIALECTS
    ]


async def _reap(parts: Components) -> None:
    while True:
        await asyncio.sleep(REAP_PERIOD_S)
        try:
            parts.resolver.expire(parts.clock())
            reaped = await parts.store.reap(parts.clock())
        except Exception:
            # A task's boundary: one failed round must not end the reaping.
            logger.exception("the reaper failed")
            continue
        parts.metrics.reaped.labels("program").inc(len(reaped.programs))
        parts.metrics.reaped.labels("session").inc(len(reaped.sessions))


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
