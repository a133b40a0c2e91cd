"""The gateway's components, built from the settings and connected."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from autellix_backend.core.balance import make_balancer
from autellix_backend.core.balance.cache_map import CacheMap
from autellix_backend.engines.base import Engine
from autellix_backend.engines.breaker import Breaker
from autellix_backend.engines.kv_events import KvEventListener, check_kv_events_installed
from autellix_backend.engines.supervisor import EngineChange, EngineState, Supervisor
from autellix_backend.gateway.calls.registry import CallRegistry
from autellix_backend.gateway.engines.handle import AdmissionBounds, EngineHandle, EngineTelemetry
from autellix_backend.gateway.engines.pool import EnginePool
from autellix_backend.gateway.engines.queue import (
    ArrivalOrdering,
    EngineQueue,
    Ordering,
    PolicyOrdering,
    Reachability,
)
from autellix_backend.gateway.engines.report_receiver import ReportReceiver
from autellix_backend.gateway.engines.router import Router
from autellix_backend.gateway.engines.upstream import Upstream
from autellix_backend.gateway.explain.event_feed import EventFeed
from autellix_backend.gateway.http.sessions import LOST_HEARTBEATS
from autellix_backend.gateway.http.watches import Watches
from autellix_backend.gateway.identity.identity import IdentityResolver
from autellix_backend.gateway.identity.session_tokens import SessionTokens
from autellix_backend.gateway.lifecycle import FactsSink, Lifecycle
from autellix_backend.gateway.recording.recorder import ProgramRecorder
from autellix_backend.gateway.tenancy.file import load_tenants
from autellix_backend.gateway.tenancy.limiter import Limiter
from autellix_backend.gateway.tenancy.tenants import Tenants
from autellix_backend.observe.exporters import CallExporters
from autellix_backend.observe.metrics import GatewayMetrics
from autellix_backend.reports.snapshot import EngineSnapshot
from autellix_backend.settings import GatewaySettings, Settings, TenantLimits
from autellix_backend.stores.base import ProgramStore
from autellix_backend.stores.factory import make_store

BREAKER_FAILURES = 3
"""Failed connections in a row that open the breaker: one may be chance, and each costs a call its wait."""
BREAKER_COOLDOWN_S = 2.0
"""Long enough to spare a dead server, short against the seconds that an engine needs to start."""
USUAL_SLOTS = 256
"""vLLM's default batch slots on most devices, for an engine whose number is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """The components of one gateway, built but not running."""

    settings: Settings
    clock: Callable[[], float]
    store: ProgramStore
    tenants: Tenants
    metrics: GatewayMetrics
    recorder: ProgramRecorder | None
    limiter: Limiter | None
    tokens: SessionTokens
    resolver: IdentityResolver
    watches: Watches
    exporters: CallExporters
    registry: CallRegistry
    feed: EventFeed
    pool: EnginePool
    router: Router


def make_components(
    settings: Settings,
    engines: Iterable[Engine],
    *,
    store: ProgramStore | None,
    tenants: Tenants | None,
    clock: Callable[[], float],
) -> Components:
    """Build the components; the arguments are those of `create_app`.

    Raises:
        SettingsError: as `create_app` does.
    """
    if settings.engine.kv_events or settings.engine.kv_events_port is not None:
        check_kv_events_installed()
    tenants = tenants or load_tenants(settings)
    metrics = GatewayMetrics()
    store = store or _make_store(settings, metrics, clock)
    metrics.follow_store(store.failure)
    recorder = _make_recorder(settings.gateway, metrics, clock)
    limiter = _make_limiter(settings, tenants, metrics, clock)
    exporters = CallExporters(settings.observe, metrics.registry)
    lifecycle = Lifecycle(FactsSink(metrics.take), *map(FactsSink, exporters.sinks))
    store.subscribe(lifecycle.on_program_ended)
    registry = CallRegistry(
        store,
        settings.scheduler,
        metrics,
        lifecycle,
        clock=clock,
        report_wait_s=settings.gateway.report_wait_s,
        limiter=limiter,
        # A report has better numbers than the answer, but for a call of several choices.
        wants_usage=recorder is not None or limiter is not None,
    )
    feed = EventFeed(registry.find, time.time, metrics.events_dropped.inc)
    metrics.event_subscribers.set_function(lambda: feed.subscriber_count)
    make_handle = partial(_make_handle, settings, tenants, metrics, registry, feed, clock)
    pool = EnginePool(make_handle, metrics.forget_engine)
    balancer = make_balancer(settings.balancer.name, settings.balancer.threshold_tokens)
    router = Router(pool, balancer, lambda reason: metrics.refusals.labels("", reason).inc())
    for subscriber in (limiter, recorder, feed, router):
        if subscriber is not None:
            lifecycle.subscribe(subscriber)
    for engine in engines:
        pool.join(engine)
    return Components(
        settings=settings,
        clock=clock,
        store=store,
        tenants=tenants,
        metrics=metrics,
        recorder=recorder,
        limiter=limiter,
        tokens=SessionTokens(
            settings.gateway.token_secret, is_strict=settings.gateway.strict_identity, clock=clock
        ),
        resolver=IdentityResolver(settings.gateway, metrics, clock=clock),
        watches=Watches(),
        exporters=exporters,
        registry=registry,
        feed=feed,
        pool=pool,
        router=router,
    )


def _make_handle(
    settings: Settings,
    tenants: Tenants,
    metrics: GatewayMetrics,
    registry: CallRegistry,
    feed: EventFeed,
    clock: Callable[[], float],
    engine: Engine,
) -> EngineHandle:
    supervisor = Supervisor(engine, settings.engine, clock=clock)
    queue, bounds, reachability = _make_queue(settings, engine, supervisor, metrics, clock)
    handle = EngineHandle(
        engine=engine,
        supervisor=supervisor,
        queue=queue,
        bounds=bounds,
        reachability=reachability,
        upstream=Upstream(
            engine,
            settings.gateway,
            metrics.retries.labels(engine.name).inc,
            api_key=settings.engine.api_key,
            hides_keys=tenants.has_keys,
            session_header=settings.engine.session_header,
        ),
        telemetry=EngineTelemetry(clock),
        default_slots=settings.engine.max_in_flight or settings.engine.max_num_seqs or USUAL_SLOTS,
    )
    metrics.set_engine(engine.name, is_up=True)
    supervisor.subscribe(partial(_on_engine_change, handle, metrics, feed))
    supervisor.watch_silence(partial(_silence_s, handle, clock))
    handle.receiver = _make_receiver(handle, registry, feed, metrics)
    if engine.kv_events_endpoint is not None:
        handle.cache = CacheMap()
        handle.kv_events = KvEventListener(engine.kv_events_endpoint, handle.cache)
        metrics.kv_event_blocks.labels(engine.name).set_function(partial(len, handle.cache))
    return handle


def _make_queue(
    settings: Settings,
    engine: Engine,
    supervisor: Supervisor,
    metrics: GatewayMetrics,
    clock: Callable[[], float],
) -> tuple[EngineQueue, AdmissionBounds, Reachability]:
    def refused(reason: str) -> None:
        metrics.refusals.labels("", reason).inc()

    limits = settings.engine
    breaker = Breaker(failures=BREAKER_FAILURES, cooldown_s=BREAKER_COOLDOWN_S)
    reachability = Reachability(engine.name, supervisor, breaker, clock)
    queue = EngineQueue(
        _make_ordering(settings, engine),
        reachability,
        full=f"all {limits.max_in_flight} slots of {engine.name} are taken",
        recovery_wait_s=settings.gateway.recovery_wait_s,
        wait_s=metrics.queues.queue_s.labels(engine.name),
        on_refusal=refused,
        clock=clock,
    )
    return queue, AdmissionBounds(engine.name, limits, refused), reachability


def _make_receiver(
    handle: EngineHandle, registry: CallRegistry, feed: EventFeed, metrics: GatewayMetrics
) -> ReportReceiver | None:
    path = handle.engine.report_socket
    if path is None:
        return None

    def take(snapshot: EngineSnapshot) -> None:
        feed.snapshot_taken(handle.name, handle.take(snapshot), snapshot)

    malformed = metrics.reports.labels("malformed").inc
    return ReportReceiver(path, registry.on_report, malformed, take)


def _make_ordering(settings: Settings, engine: Engine) -> Ordering:
    """Return the order of an engine's queue; an engine with our scheduler orders its calls itself."""
    slots = settings.engine.max_in_flight
    if engine.report_socket is not None or slots is None:
        return ArrivalOrdering()
    return PolicyOrdering(settings.scheduler, slots)


def _make_store(settings: Settings, metrics: GatewayMetrics, clock: Callable[[], float]) -> ProgramStore:
    return make_store(
        settings,
        session_ttl_s=LOST_HEARTBEATS * settings.gateway.heartbeat_s,
        clock=clock,
        on_fallback=metrics.store_fallbacks.inc,
    )


def _make_recorder(
    gateway: GatewaySettings, metrics: GatewayMetrics, clock: Callable[[], float]
) -> ProgramRecorder | None:
    if gateway.record_path is None:
        return None
    return ProgramRecorder(gateway.record_path, metrics.registry, origin_s=clock())


def _make_limiter(
    settings: Settings, tenants: Tenants, metrics: GatewayMetrics, clock: Callable[[], float]
) -> Limiter | None:
    if not tenants.has_keys and settings.limits == TenantLimits():
        return None
    return Limiter(
        epoch_s=time.time() - clock(),
        on_refusal=lambda tenant, reason: metrics.refusals.labels(tenant, reason).inc(),
    )


def _on_engine_change(
    handle: EngineHandle, metrics: GatewayMetrics, feed: EventFeed, change: EngineChange
) -> None:
    is_up = change.state is EngineState.UP
    metrics.set_engine(change.engine, is_up=is_up, is_restarting=change.state is EngineState.RESTARTING)
    if not is_up:
        handle.telemetry.forget()
        if handle.cache is not None:
            # Its cache is gone, or unknown until it publishes again.
            handle.cache.begin(is_complete=False)
    feed.engine_changed(change.engine, change.state.value, change.reason)


def _silence_s(handle: EngineHandle, clock: Callable[[], float]) -> float:
    """Return for how long an engine that reports on its calls has had some and sent nothing."""
    busy_since_s = handle.queue.busy_since_s
    if not handle.sends_reports or busy_since_s is None:
        return 0.0
    return clock() - max(handle.telemetry.received_s or 0.0, busy_since_s)
