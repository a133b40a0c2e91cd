"""The gateway as an ASGI app: its middleware and its routes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute

from autellix_backend.gateway.calls.dialects import DIALECTS
from autellix_backend.gateway.calls.exchange import CallEndpoint
from autellix_backend.gateway.calls.reception import Reception
from autellix_backend.gateway.http import admin, engines, sessions
from autellix_backend.gateway.http.authentication import MAX_REQUESTS, Authentication
from autellix_backend.gateway.http.call_paths import CallPaths
from autellix_backend.gateway.http.errors import install_error_handlers
from autellix_backend.gateway.http.guard import RequestGuard, is_loopback
from autellix_backend.gateway.http.openapi import AsgiRoute, head_routes
from autellix_backend.gateway.http.passthrough import PassthroughEndpoint
from autellix_backend.gateway.wiring import Gateway

ROOMS = (admin, engines, sessions)


def make_app(
    gateway: Gateway,
    *,
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]],
    routes: Sequence[BaseRoute] = (),
    is_page_path: Callable[[str], bool] = lambda _: False,
    max_requests: int = MAX_REQUESTS,
) -> FastAPI:
    """Return the app of a gateway, which is its `app.state.gateway`.

    Args:
        gateway: Its parts, which run while the lifespan lasts.
        lifespan: Runs what the app needs.
        routes: Further routes.
        is_page_path: Returns whether a path belongs to pages, whose files need no key and may be linked to.
        max_requests: Open requests that the server takes at most; a tenant may have half of them.
    """
    app = FastAPI(title="Autellix", openapi_url=None, lifespan=lifespan, redirect_slashes=False)
    install_error_handlers(app)
    settings, has_keys = gateway.settings.gateway, gateway.tenants.has_keys
    to_engines = _engine_routes(gateway)
    # The last one that is added is the outermost. Calls pass these, and not the router.
    app.add_middleware(
        CallPaths,
        calls={route.path: route.app for route in to_engines if isinstance(route.app, CallEndpoint)},
    )
    if has_keys:
        app.add_middleware(
            Authentication,
            tenants=gateway.tenants,
            on_refusal=gateway.metrics.count_refusal,
            audit=gateway.audit,
            is_page_path=is_page_path,
            max_requests=max_requests,
        )
    if settings.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["*"],
            # Browsers ask for it where a public site's page calls an address of a private network.
            allow_private_network=True,
        )
    app.add_middleware(
        RequestGuard,
        is_local=is_loopback(settings.host) and not has_keys,
        hosts=settings.hosts,
        origins=settings.origins,
        is_page_path=is_page_path,
    )
    app.router.routes.extend(to_engines)
    for room in ROOMS:
        app.router.routes.extend(room.router.routes)
    app.router.routes.extend(routes)
    app.router.routes.extend(head_routes(app))
    app.state.gateway = gateway
    return app


def _engine_routes(gateway: Gateway) -> list[AsgiRoute]:
    max_body_bytes = gateway.settings.gateway.max_body_bytes
    reception = Reception(
        tokens=gateway.tokens,
        resolver=gateway.resolver,
        models=gateway.models,
        new_id=gateway.registry.new_id,
        max_body_bytes=max_body_bytes,
    )
    serve_call = partial(
        CallEndpoint,
        tenants=gateway.tenants,
        intake=gateway.intake,
        reception=reception,
        router=gateway.router,
        registry=gateway.registry,
        arguments=gateway.arguments,
    )
    passthrough = PassthroughEndpoint(
        gateway.pool,
        gateway.models,
        gateway.tenants,
        gateway.intake,
        gateway.store,
        gateway.limiter,
        clock=gateway.clock,
        max_body_bytes=max_body_bytes,
    )
    return [
        AsgiRoute(dialect, serve_call(dialect) if dialect.makes_call else passthrough) for dialect in DIALECTS
    ]
