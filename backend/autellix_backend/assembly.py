"""The whole server as an ASGI app: the gateway, the record of its programs, and the console above it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from fastapi import FastAPI
from starlette.routing import BaseRoute

from autellix_backend.console.history.critical_path import spent
from autellix_backend.console.history.history import MAX_PROGRAMS, PastProgram, ProgramHistory
from autellix_backend.console.http import events, history, overview, page, programs, replay, timeline
from autellix_backend.console.wiring import Console
from autellix_backend.engines.base import Engine
from autellix_backend.gateway.app import make_app
from autellix_backend.gateway.calls.call import GatewayCall
from autellix_backend.gateway.http.authentication import MAX_REQUESTS
from autellix_backend.gateway.http.guard import is_loopback
from autellix_backend.gateway.tenancy.tenants import Tenants
from autellix_backend.gateway.wiring import Gateway
from autellix_backend.settings import Settings
from autellix_backend.stores.base import ProgramStore

ROOMS = (events, history, overview, timeline, programs, replay)


def create_app(
    settings: Settings,
    *engines: Engine,
    store: ProgramStore | None = None,
    tenants: Tenants | None = None,
    clock: Callable[[], float] = time.monotonic,
    max_requests: int = MAX_REQUESTS,
) -> FastAPI:
    """Build the gateway in front of engines, which the caller starts and stops, and its console.

    `app.state.gateway` and `app.state.console` hold their parts, the latter None where
    `settings.gateway.console` turns it off. While the app runs, the pool supervises the engines and restarts
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
    gateway = Gateway(settings, engines, store=store, tenants=tenants, clock=clock)
    has_console = settings.gateway.console
    # Without a console nobody asks for ended programs.
    past = ProgramHistory(MAX_PROGRAMS if has_console else 0, clock=clock)
    _follow_programs(gateway, past)
    console = Console(gateway, past) if has_console else None
    app = make_app(
        gateway,
        lifespan=partial(_running, gateway, console),
        routes=[] if console is None else _routes(gateway),
        is_page_path=(lambda _: False) if console is None else page.is_page_path,
        max_requests=max_requests,
    )
    app.state.console = console
    return app


@asynccontextmanager
async def _running(gateway: Gateway, console: Console | None, _app: FastAPI) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(gateway.running())
        if console is not None:
            await stack.enter_async_context(console.running())
        yield


def _routes(gateway: Gateway) -> list[BaseRoute]:
    """Return the console's routes."""
    settings, has_keys = gateway.settings.gateway, gateway.tenants.has_keys
    routes = [route for room in ROOMS for route in room.router.routes]
    if page.has_page(settings, has_keys=has_keys, is_loopback=is_loopback(settings.host)):
        routes += page.router.routes
    return routes


def _follow_programs(gateway: Gateway, past: ProgramHistory) -> None:
    """Record the calls of each program, for its metrics and its span."""
    gateway.registry.subscribe(on_begun=past.on_call_begun, on_settled=past.on_call_settled)
    gateway.store.subscribe(lambda end: past.on_program_ended(end.program_id))
    past.subscribe(partial(_observe_program, gateway))
    if (tracer := gateway.tracer) is not None:

        def begin(call: GatewayCall) -> None:
            tracer.begin_program(call.start.program_id, call.shown_program, call.start.name, time.time())

        gateway.registry.subscribe(on_begun=begin)


def _observe_program(gateway: Gateway, program: PastProgram) -> None:
    """Count an ended program, and close its span."""
    parts_s = spent(program).parts_s
    usages = (call.answer_usage for call in program.calls)
    output_tokens = sum(usage.output_tokens for usage in usages if usage is not None)
    gateway.metrics.programs.take(program.name, parts_s, output_tokens)
    if gateway.tracer is not None:
        gateway.tracer.end_program(program.program_id, program.began_at_s + program.duration_s, parts_s)
