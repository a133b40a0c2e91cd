"""The gateway's parts, built and joined in one place."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import logging
import time
from collections.abc import AsyncIterator, Callable
from functools import partial

from fastapi import FastAPI
from starlette.routing import Route

from autellix_backend.engines.base import Engine
from autellix_backend.engines.supervisor import EngineChange, EngineState, Supervisor
from autellix_backend.gateway.accounting import AccountingReceiver
from autellix_backend.gateway.admin_api import AdminApi
from autellix_backend.gateway.calls import CallDesk
from autellix_backend.gateway.dialects import DIALECTS, Dialect
from autellix_backend.gateway.dispatch import Dispatcher
from autellix_backend.gateway.door import Door
from autellix_backend.gateway.endpoint import CallEndpoint
from autellix_backend.gateway.ends import EndObserver, EndObservers
from autellix_backend.gateway.errors import InvalidKeyError, install_error_handlers
from autellix_backend.gateway.events import EventFeed
from autellix_backend.gateway.events_api import EVENTS_PATH, EventsEndpoint
from autellix_backend.gateway.identity import Placement
from autellix_backend.gateway.limiter import Limiter
from autellix_backend.gateway.line import Line, OrderedLine, StraightLine
from autellix_backend.gateway.observers import CallObservers
from autellix_backend.gateway.openapi import openapi_route
from autellix_backend.gateway.overview import Overview
from autellix_backend.gateway.passthrough import PassthroughEndpoint
from autellix_backend.gateway.programs_api import ProgramsApi
from autellix_backend.gateway.record import ProgramRecorder
from autellix_backend.gateway.reports import EngineReports
from autellix_backend.gateway.sessions_api import LOST_HEARTBEATS, SessionsApi
from autellix_backend.gateway.tenants import Tenants
from autellix_backend.gateway.tenants_file import load_tenants
from autellix_backend.gateway.tokens import TokenGuard
from autellix_backend.gateway.upstream import Upstream
from autellix_backend.gateway.watches import Watches
from autellix_backend.observe.call_outputs import CallOutputs
from autellix_backend.observe.metrics import GatewayMetrics
from autellix_backend.settings import GatewaySettings, Settings, TenantLimits
from autellix_backend.stores.base import ProgramStore, Reaped
from autellix_backend.stores.factory import make_store

REAP_PERIOD_S = 1.0

logger = logging.getLogger(__name__)


def create_app(
    settings: Settings,
    engine: Engine,
    *,
    store: ProgramStore | None = None,
    tenants: Tenants | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> FastAPI:
    """Build the gateway in front of one engine, which the caller starts and stops.

    While the app runs, `app.state.supervisor` watches the engine and restarts it; close it before the engine
    is stopped.

    Args:
        settings: The tree of settings.
        engine: The engine that answers the calls.
        store: Where programs and sessions live; where the settings say if None.
        tenants: Who may come in; those of the settings if None.
        clock: Seconds that only grow.

    Raises:
        SettingsError: if programs are to be recorded into a file that cannot be written, the tenants' file
            is malformed, calls cannot be logged, or the extra for traces or for Redis is not installed.
    """
    tenants = tenants or load_tenants(settings)
    metrics = GatewayMetrics()
    store = store or make_store(
        settings,
        session_ttl_s=LOST_HEARTBEATS * settings.gateway.heartbeat_s,
        clock=clock,
        on_fallback=metrics.store_fallbacks.inc,
    )
    metrics.follow_store(store.failure)
    recorder = _make_recorder(settings.gateway, metrics, clock)
    limiter = _make_limiter(settings, tenants, metrics, clock)
    ends = EndObservers(*(observer for observer in (recorder, limiter) if observer is not None))
    guard = TokenGuard(settings.gateway.token_secret, is_strict=settings.gateway.strict_identity, clock=clock)
    placement = Placement(settings.gateway, metrics, clock=clock)
    watches = Watches()
    supervisor = Supervisor(engine, settings.engine, clock=clock)
    metrics.set_engine(engine.name, is_up=True)
    supervisor.subscribe(partial(_count, metrics))
    upstream = Upstream(
        engine,
        settings.gateway,
        metrics.retries.labels(engine.name).inc,
        api_key=settings.engine.api_key,
        hides_keys=not tenants.is_open,
    )
    dispatcher = Dispatcher(
        _make_line(settings, engine),
        supervisor,
        settings.engine,
        metrics,
        engine=engine.name,
        recovery_wait_s=settings.gateway.recovery_wait_s,
        clock=clock,
    )
    outputs = CallOutputs(settings.observe, metrics.registry)
    observers = CallObservers(engine=engine.name, wall_clock=time.time)
    if recorder is not None:
        observers.add(recorder)
    for sink in (metrics.call_facts.take, *outputs.sinks):
        observers.add_sink(sink)
    desk = CallDesk(
        store,
        settings.scheduler,
        metrics,
        engine=engine.name,
        clock=clock,
        # An engine that sends no accounts is not waited for.
        account_wait_s=settings.gateway.account_wait_s if engine.accounting_socket is not None else 0.0,
        observer=observers,
        limiter=limiter,
        # An account has better numbers than the answer, but for a call of several choices.
        wants_usage=recorder is not None or limiter is not None or engine.accounting_socket is None,
    )
    feed = EventFeed(desk.find, time.time, metrics.events_dropped.inc)
    observers.add(feed)
    store.watch_ends(feed.program_left)
    metrics.event_listeners.set_function(lambda: feed.listener_count)
    reports = EngineReports(clock, feed.snapshot_taken)
    supervisor.subscribe(partial(_follow_engine, feed, reports))
    supervisor.watch_silence(partial(_silence_s, engine, dispatcher, reports, clock))
    overview = Overview(engine, supervisor, dispatcher, desk, reports, clock)

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            # Last of all at the end, when every call is settled.
            if recorder is not None:
                stack.push_async_callback(recorder.close)
            outputs.open()
            stack.push_async_callback(asyncio.to_thread, outputs.close)
            if engine.accounting_socket is not None:
                malformed = metrics.accounts.labels("malformed").inc
                take_snapshot = partial(reports.take, engine.name)
                receiver = AccountingReceiver(
                    engine.accounting_socket, desk.deliver, malformed, take_snapshot
                )
                receiver.open()
                stack.callback(receiver.close)
            await store.open()
            stack.push_async_callback(store.close)
            upstream.open()
            stack.push_async_callback(upstream.close)
            supervisor.open()
            stack.push_async_callback(supervisor.close)
            reaper = asyncio.create_task(_reap(store, placement, metrics, clock, ends))
            stack.push_async_callback(_cancel, reaper)
            # First of all at the end: calls that the server cancelled still want their accounts.
            stack.push_async_callback(desk.drained)
            yield

    app = FastAPI(title="Autellix", openapi_url=None, lifespan=lifespan, redirect_slashes=False)
    install_error_handlers(app)
    if not tenants.is_open:
        app.add_middleware(
            Door, tenants=tenants, on_refusal=metrics.refusals.labels("", InvalidKeyError.code).inc
        )
    max_body_bytes = settings.gateway.max_body_bytes
    passthrough = PassthroughEndpoint(upstream, max_body_bytes=max_body_bytes)

    def call_endpoint(dialect: Dialect) -> CallEndpoint:
        return CallEndpoint(
            dialect,
            upstream,
            dispatcher,
            desk,
            guard,
            placement,
            tenants,
            engine=engine.name,
            max_body_bytes=max_body_bytes,
        )

    app.router.routes.extend(_engine_routes(call_endpoint, passthrough))
    app.router.routes.extend(
        AdminApi(settings, engine, supervisor, dispatcher, store, desk, metrics, tenants, overview).routes()
    )
    app.router.routes.append(Route(EVENTS_PATH, EventsEndpoint(feed, watches, tenants), methods=["GET"]))
    app.router.routes.extend(ProgramsApi(store, overview, settings.scheduler, tenants).routes())
    sessions = SessionsApi(store, clock, settings.gateway, guard, watches, tenants, ends)
    app.router.routes.extend(sessions.routes())
    app.router.routes.append(openapi_route(importlib.metadata.version("autellix")))
    app.state.watches = watches
    app.state.tenants = tenants
    app.state.supervisor = supervisor
    app.state.limiter = limiter
    app.state.dispatcher = dispatcher
    return app


def _engine_routes(
    call_endpoint: Callable[[Dialect], CallEndpoint], passthrough: PassthroughEndpoint
) -> list[Route]:
    return [
        Route(
            dialect.path,
            call_endpoint(dialect) if dialect.makes_call else passthrough,
            methods=[dialect.method],
        )
        for dialect in DIALECTS
    ]


def _make_line(settings: Settings, engine: Engine) -> Line:
    """Return the line before the engine; one that has our scheduler orders its calls itself."""
    slots = settings.engine.max_in_flight
    if engine.accounting_socket is not None or slots is None:
        return StraightLine()
    return OrderedLine(settings.scheduler, slots)


def _make_recorder(
    gateway: GatewaySettings, metrics: GatewayMetrics, clock: Callable[[], float]
) -> ProgramRecorder | None:
    if gateway.record_path is None:
        return None
    return ProgramRecorder(
        gateway.record_path, metrics.registry, origin_s=clock(), idle_s=gateway.program_idle_s
    )


def _make_limiter(
    settings: Settings, tenants: Tenants, metrics: GatewayMetrics, clock: Callable[[], float]
) -> Limiter | None:
    if tenants.is_open and settings.limits == TenantLimits():
        return None
    return Limiter(
        idle_s=settings.gateway.program_idle_s,
        epoch_s=time.time() - clock(),
        on_refusal=lambda tenant, reason: metrics.refusals.labels(tenant, reason).inc(),
    )


def _follow_engine(feed: EventFeed, reports: EngineReports, change: EngineChange) -> None:
    if change.state is not EngineState.UP:
        # What it told last is no longer so.
        reports.forget(change.engine)
    feed.engine_changed(change.engine, change.state.value, change.reason)


def _count(metrics: GatewayMetrics, change: EngineChange) -> None:
    is_restarting = change.state is EngineState.RESTARTING
    metrics.set_engine(change.engine, is_up=change.state is EngineState.UP, is_restarting=is_restarting)


def _silence_s(
    engine: Engine, dispatcher: Dispatcher, reports: EngineReports, clock: Callable[[], float]
) -> float:
    """Return for how long an engine that tells of its calls has had some and told nothing."""
    if engine.accounting_socket is None or dispatcher.busy_since_s is None:
        return 0.0
    report = reports.get(engine.name)
    last_s = dispatcher.busy_since_s if report is None else max(report.received_s, dispatcher.busy_since_s)
    return clock() - last_s


async def _reap(
    store: ProgramStore,
    placement: Placement,
    metrics: GatewayMetrics,
    clock: Callable[[], float],
    ends: EndObserver,
) -> None:
    while True:
        await asyncio.sleep(REAP_PERIOD_S)
        try:
            placement.expire(clock())
            reaped = await store.reap(clock())
            _tell(ends, reaped, clock())
        except Exception:
            # A task's boundary: one failed round must not end the reaping.
            logger.exception("the reaper failed")
            continue
        metrics.reaped.labels("program").inc(len(reaped.programs))
        metrics.reaped.labels("session").inc(len(reaped.sessions))


def _tell(ends: EndObserver, reaped: Reaped, now: float) -> None:
    for program_id in reaped.programs:
        ends.program_ended(program_id)
    for session_id in reaped.sessions:
        ends.session_ended(session_id)
    ends.expire(now)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
