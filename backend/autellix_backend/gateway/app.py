"""The gateway as an ASGI app: its routes and its lifespan."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from functools import partial

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from autellix_backend.console.http import events, history, overview, page, programs, replay, timeline
from autellix_backend.engines.base import Engine
from autellix_backend.gateway.calls.dialects import DIALECTS
from autellix_backend.gateway.calls.exchange import CallEndpoint
from autellix_backend.gateway.http import admin, engines, sessions
from autellix_backend.gateway.http.authentication import MAX_REQUESTS, Authentication
from autellix_backend.gateway.http.call_paths import CallPaths
from autellix_backend.gateway.http.errors import install_error_handlers
from autellix_backend.gateway.http.guard import RequestGuard, is_loopback
from autellix_backend.gateway.http.openapi import AsgiRoute, head_routes
from autellix_backend.gateway.http.passthrough import PassthroughEndpoint
from autellix_backend.gateway.tenancy.tenants import Tenants
from autellix_backend.gateway.wiring import Components
from autellix_backend.settings import Settings
from autellix_backend.stores.base import ProgramStore

REAP_PERIOD_S = 1.0
CLOSE_TIMEOUT_S = 5.0
"""How long the end waits for the disk of the call log."""
ROOMS = (admin, engines, events, history, overview, timeline, programs, replay, sessions)

logger = logging.getLogger(__name__)


def create_app(
    settings: Settings,
    *engines: Engine,
    store: ProgramStore | None = None,
    tenants: Tenants | None = None,
    clock: Callable[[], float] = time.monotonic,
    max_requests: int = MAX_REQUESTS,
) -> FastAPI:
    """Build the gateway in front of engines, which the caller starts and stops.

    `app.state.components` holds its parts. While the app runs, the pool supervises the engines and restarts
    them; close it before stopping them.

    Args:
        settings: The tree of settings.
        engines: The engines that answer the calls, in the operator's order; more may join later.
        store: The store of programs and sessions; that of the settings if None.
        tenants: The tenants; those of the settings if None.
        clock: Monotonic seconds.
        max_requests: Open requests that the server takes at most; a tenant may have half of them.

    Raises:
        SettingsError: if the call log cannot be written, the tenants file is malformed, or
            the extra for traces or for Redis is not installed.
    """
    components = Components(settings, engines, store=store, tenants=tenants, clock=clock)
    app = FastAPI(
        title="Autellix", openapi_url=None, lifespan=partial(_lifespan, components), redirect_slashes=False
    )
    install_error_handlers(app)
    gateway, has_keys = settings.gateway, components.tenants.has_keys
    is_local = is_loopback(gateway.host)
    routes = _engine_routes(components)
    # The last one that is added is the outermost. Calls pass these, and not the router.
    app.add_middleware(
        CallPaths,
        calls={route.path: route.app for route in routes if isinstance(route.app, CallEndpoint)},
    )
    if has_keys:
        app.add_middleware(
            Authentication,
            tenants=components.tenants,
            on_refusal=components.metrics.count_refusal,
            audit=components.audit,
            max_requests=max_requests,
        )
    if gateway.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=gateway.origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["*"],
            # Browsers ask for it where a public site's page calls an address of a private network.
            allow_private_network=True,
        )
    app.add_middleware(
        RequestGuard, is_local=is_local and not has_keys, hosts=gateway.hosts, origins=gateway.origins
    )
    app.router.routes.extend(routes)
    for room in ROOMS:
        app.router.routes.extend(room.router.routes)
    if page.has_page(gateway, has_keys=has_keys, is_loopback=is_local):
        app.router.routes.extend(page.router.routes)
    app.router.routes.extend(head_routes(app))
    app.state.components = components
    return app


@contextlib.asynccontextmanager
async def _lifespan(components: Components, _app: FastAPI) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        # Last at the end, when every call is settled.
        for exporter in (components.tracer, components.genai_metrics):
            if exporter is not None:
                stack.push_async_callback(asyncio.to_thread, exporter.close)
        if components.call_log is not None:
            components.call_log.open()
            stack.push_async_callback(asyncio.to_thread, components.call_log.close, CLOSE_TIMEOUT_S)
        await components.store.open()
        stack.push_async_callback(components.store.close)
        await components.share_budgets(components.tenants.with_day_budgets)
        stack.push_async_callback(components.share_budgets)
        for end in await components.store.recent_ends():
            components.classes.on_program_ended(end)
        components.pool.open()
        stack.push_async_callback(components.pool.close)
        await components.models.open()
        stack.push_async_callback(components.models.close)
        for task in (_reap(components), overview.sample_load(components)):
            stack.push_async_callback(_cancel, asyncio.create_task(task))
        # First at the end: calls that the server cancelled still get their reports.
        stack.push_async_callback(components.registry.drained)
        yield


def _engine_routes(components: Components) -> list[AsgiRoute]:
    max_body_bytes = components.settings.gateway.max_body_bytes
    serve_call = partial(
        CallEndpoint,
        tenants=components.tenants,
        tokens=components.tokens,
        resolver=components.resolver,
        models=components.models,
        router=components.router,
        registry=components.registry,
        arguments=components.arguments,
        intake=components.intake,
        max_body_bytes=max_body_bytes,
    )
    passthrough = PassthroughEndpoint(
        components.pool,
        components.models,
        components.tenants,
        components.intake,
        components.store,
        components.limiter,
        clock=components.clock,
        max_body_bytes=max_body_bytes,
    )
    return [
        AsgiRoute(dialect, serve_call(dialect) if dialect.makes_call else passthrough) for dialect in DIALECTS
    ]


async def _reap(components: Components) -> None:
    while True:
        await asyncio.sleep(REAP_PERIOD_S)
        try:
            components.resolver.expire(components.clock())
            components.sessions.expire(components.clock())
            components.look_for_stragglers()
            reaped = await components.store.reap(components.clock())
            await components.share_budgets()
        except Exception:
            # A task's boundary: one failed round must not end the reaping.
            logger.exception("the reaper failed")
            continue
        components.metrics.reaped.labels("program").inc(len(reaped.programs))
        components.metrics.reaped.labels("session").inc(len(reaped.sessions))


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
