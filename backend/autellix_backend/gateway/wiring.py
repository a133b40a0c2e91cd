"""The gateway's components, built from the settings and connected."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Callable, Iterable
from functools import partial

from autellix_backend.core.balance import make_balancer
from autellix_backend.engines.base import Engine
from autellix_backend.engines.breaker import Breaker
from autellix_backend.engines.ray_replica import RayReplica
from autellix_backend.engines.remote import RemoteEngine
from autellix_backend.engines.report_client import ReportClient
from autellix_backend.engines.supervisor import EngineChange, EngineState, Supervisor
from autellix_backend.gateway.calls.call import GatewayCall
from autellix_backend.gateway.calls.outbound import EngineArguments
from autellix_backend.gateway.calls.registry import CallRegistry
from autellix_backend.gateway.calls.router import Router
from autellix_backend.gateway.classes import ProgramClasses
from autellix_backend.gateway.engines.handle import AdmissionBounds, EngineHandle
from autellix_backend.gateway.engines.ordering import ArrivalOrdering, Ordering, PolicyOrdering
from autellix_backend.gateway.engines.pool import EnginePool
from autellix_backend.gateway.engines.queue import EngineQueue
from autellix_backend.gateway.engines.report_receiver import ReportDecoder
from autellix_backend.gateway.engines.upstream import Upstream
from autellix_backend.gateway.explain.event_feed import EventFeed
from autellix_backend.gateway.history.critical_path import spent
from autellix_backend.gateway.history.history import PastProgram, ProgramHistory
from autellix_backend.gateway.http.fairness import AnswerTurns
from autellix_backend.gateway.http.sessions import SESSION_TTL_S
from autellix_backend.gateway.identity.identity import IdentityResolver
from autellix_backend.gateway.identity.running_sessions import RunningSessions
from autellix_backend.gateway.identity.session_tokens import SessionTokens
from autellix_backend.gateway.tenancy.file import load_tenants
from autellix_backend.gateway.tenancy.intake import Intake
from autellix_backend.gateway.tenancy.limiter import Limiter
from autellix_backend.gateway.tenancy.open_sessions import OpenSessions
from autellix_backend.gateway.tenancy.tenants import Tenants
from autellix_backend.observe.call_log import CallLog
from autellix_backend.observe.genai_metrics import make_genai_metrics
from autellix_backend.observe.metrics import GatewayMetrics
from autellix_backend.observe.tracing import ProgramTracer, make_tracer
from autellix_backend.reports.snapshot import EngineSnapshot
from autellix_backend.settings import Settings, TenantLimits
from autellix_backend.stores.base import ProgramEnd, ProgramStore
from autellix_backend.stores.factory import make_store

BREAKER_FAILURES = 3
"""Failed connections in a row that open the breaker: one may be chance, and each one costs a call time."""
BREAKER_COOLDOWN_S = 2.0
"""Long enough to spare a dead server, short against the seconds that an engine needs to start."""
USUAL_SLOTS = 256
"""vLLM's default batch slots on most devices, for an engine whose number is unknown."""


class Components:
    """The components of one gateway, built but not running."""

    def __init__(
        self,
        settings: Settings,
        engines: Iterable[Engine],
        *,
        store: ProgramStore | None,
        tenants: Tenants | None,
        clock: Callable[[], float],
    ) -> None:
        """Build the components; the arguments are those of `create_app`.

        Raises:
            SettingsError: as `create_app` does.
        """
        gateway = settings.gateway
        self.settings = settings
        self.clock = clock
        self.closing = asyncio.Event()
        """Set when the server ends: requests that clients keep open end too."""
        self.tenants = tenants or load_tenants(settings)
        self.metrics = metrics = GatewayMetrics(settings.observe.program_names)
        self.store = store or make_store(
            settings, session_ttl_s=SESSION_TTL_S, clock=clock, on_fallback=metrics.store_fallbacks.inc
        )
        metrics.follow_store(self.store.failure)
        self._count_engine_refusal = partial(self.count_refusal, "")
        self.limiter = self._make_limiter()
        self.intake = self._make_intake()
        self.turns = AnswerTurns()
        self.sessions = OpenSessions(ttl_s=SESSION_TTL_S, on_refusal=self.count_refusal)
        is_shared = settings.store.is_shared
        running = RunningSessions(self.store, clock=clock, is_shared=is_shared, grace_s=SESSION_TTL_S)
        self.tokens = SessionTokens(
            gateway.token_secret,
            running,
            is_strict=gateway.strict_identity,
            has_keys=self.tenants.has_keys,
        )
        self.resolver = IdentityResolver(gateway, metrics, clock=clock)
        log_path = settings.observe.call_log
        self.call_log = None if log_path is None else CallLog(log_path, metrics.registry)
        self.tracer = make_tracer(settings.observe.otlp_endpoint, os.environ)
        self.genai_metrics = make_genai_metrics(settings.observe.otlp_endpoint, os.environ)
        self.classes = ProgramClasses()
        observe = settings.observe
        self.history = ProgramHistory(observe.history_programs, clock=clock)
        readers_of_usage = (self.call_log, self.limiter, self.tracer, self.genai_metrics)
        self.registry = CallRegistry(
            self.store,
            settings.scheduler,
            metrics,
            clock=clock,
            report_wait_s=gateway.report_wait_s,
            limiter=self.limiter,
            classes=self.classes,
            # A report has better numbers than the answer, but for a call of several choices.
            wants_usage=any(each is not None for each in readers_of_usage),
        )
        self.arguments = EngineArguments(
            settings.scheduler, self.classes, self.registry.gateway_id, clock=clock
        )
        self.feed = feed = EventFeed(self.registry.find, time.time, metrics.events_dropped.inc)
        metrics.event_subscribers.set_function(lambda: feed.subscriber_count)
        self.pool = EnginePool(self._make_handle, metrics.forget_engine)
        balancer = make_balancer(settings.balancer.name, settings.balancer.threshold_tokens)
        self.router = Router(self.pool, balancer, self._count_engine_refusal)
        self._subscribe()
        for engine in engines:
            self.pool.join(engine)

    def _subscribe(self) -> None:
        """Subscribe the parts that follow calls and programs."""
        registry = self.registry
        registry.subscribe(on_settled=self.metrics.calls.take)
        if self.call_log is not None:
            registry.subscribe(on_settled=self.call_log.put)
        if self.tracer is not None:
            registry.subscribe(on_settled=self.tracer.take)
        if self.genai_metrics is not None:
            registry.subscribe(on_settled=self.genai_metrics.take)
        if self.limiter is not None:
            registry.subscribe(on_settled=self.limiter.on_call_settled)
            self.store.subscribe(partial(_by_id, self.limiter.on_program_ended))
        if self.settings.observe.history_programs:
            history = self.history
            registry.subscribe(on_begun=history.on_call_begun, on_settled=history.on_call_settled)
            self.store.subscribe(partial(_by_id, history.on_program_ended))
            history.subscribe(self._observe_program)
            if self.tracer is not None:
                registry.subscribe(on_begun=partial(_begin_trace, self.tracer))
        registry.subscribe(on_begun=self.feed.on_call_begun, on_settled=self.feed.on_call_settled)
        registry.subscribe(on_settled=self.router.on_call_settled)
        for part in (self.feed, self.router, self.pool):
            self.store.subscribe(partial(_by_id, part.on_program_ended))
        self.store.subscribe(self.classes.on_program_ended)

    def _make_limiter(self) -> Limiter | None:
        if not self.tenants.has_keys and self.settings.limits == TenantLimits():
            return None
        return Limiter(epoch_s=time.time() - self.clock(), on_refusal=self.count_refusal)

    def _make_intake(self) -> Intake:
        gateway = self.settings.gateway
        max_bytes = max(gateway.max_incoming_bytes, gateway.max_body_bytes)
        # Without tenants no half is kept for others.
        share_bytes = max_bytes // 2 if self.tenants.has_keys else max_bytes
        return Intake(max_bytes, max(share_bytes, gateway.max_body_bytes), self.limiter, self.count_refusal)

    def _make_handle(self, engine: Engine) -> EngineHandle:
        limits, metrics = self.settings.engine, self.metrics
        supervisor = Supervisor(engine, limits, clock=self.clock)
        make_ordering = partial(self._make_ordering, engine)
        handle = EngineHandle(
            engine=engine,
            supervisor=supervisor,
            queue=self._make_queue(engine, make_ordering(), supervisor),
            scheduler=self.settings.scheduler,
            make_ordering=make_ordering,
            bounds=AdmissionBounds(engine.name, self._count_engine_refusal),
            upstream=Upstream(
                engine,
                self.settings.gateway,
                metrics.retries.labels(engine.name).inc,
                api_key=limits.api_key,
                authorization=engine.authorization if isinstance(engine, RemoteEngine) else None,
                hides_keys=self.tenants.has_keys,
            ),
            clock=self.clock,
            default_slots=limits.max_in_flight or limits.max_num_seqs or USUAL_SLOTS,
        )
        decoder = ReportDecoder(
            on_report=partial(self.registry.on_report, engine.name),
            on_malformed=metrics.reports.labels("malformed").inc,
            on_snapshot=partial(self._on_snapshot, handle),
        )
        handle.link = ReportClient(
            engine.report_secret if isinstance(engine, RayReplica) else limits.report_secret,
            self.registry.gateway_id,
            on_message=decoder,
            on_change=partial(self._on_link_change, handle),
        )
        metrics.set_engine(engine.name, is_up=True)
        metrics.engine_reports.labels(engine.name).set_function(lambda: handle.sends_reports)
        supervisor.subscribe(handle.on_change)
        supervisor.subscribe(self._on_engine_change)
        supervisor.watch_silence(handle.silence_s)
        return handle

    def _make_ordering(self, engine: Engine) -> Ordering:
        """Return the order of the calls for an engine, as long as it has no scheduler of ours."""
        limits, scheduler = self.settings.engine, self.settings.scheduler
        slots, kv_tokens = limits.max_in_flight, limits.kv_tokens or engine.kv_tokens
        has_admission = scheduler.has_admission and kv_tokens is not None
        has_scheduler = engine.is_owned and engine.report_endpoints
        if not has_scheduler and (slots is not None or has_admission):
            return PolicyOrdering(scheduler, slots or math.inf, kv_tokens or math.inf)
        return ArrivalOrdering()

    def _make_queue(self, engine: Engine, ordering: Ordering, supervisor: Supervisor) -> EngineQueue:
        slots = self.settings.engine.max_in_flight
        return EngineQueue(
            engine=engine.name,
            ordering=ordering,
            supervisor=supervisor,
            breaker=Breaker(failures=BREAKER_FAILURES, cooldown_s=BREAKER_COOLDOWN_S),
            full=f"all {slots} slots of {engine.name} are taken",
            recovery_wait_s=self.settings.gateway.recovery_wait_s,
            wait_s=self.metrics.queue_s.labels(engine.name),
            can_move=partial(self.pool.can_move_from, engine.name),
            on_refusal=self._count_engine_refusal,
            clock=self.clock,
        )

    def _on_snapshot(self, handle: EngineHandle, snapshot: EngineSnapshot) -> None:
        self.feed.snapshot_taken(handle.name, handle.on_snapshot(snapshot), snapshot)

    def _on_link_change(self, handle: EngineHandle) -> None:
        handle.on_link_change()
        self.pool.on_link_change(handle)

    def _on_engine_change(self, change: EngineChange) -> None:
        self.metrics.set_engine(
            change.engine,
            is_up=change.state is EngineState.UP,
            is_restarting=change.state is EngineState.RESTARTING,
        )
        self.feed.engine_changed(change.engine, change.state.value, change.reason)

    def _observe_program(self, program: PastProgram) -> None:
        """Count an ended program, and close its span."""
        parts_s = spent(program).parts_s
        usages = (call.answer_usage for call in program.calls)
        output_tokens = sum(usage.output_tokens for usage in usages if usage is not None)
        self.metrics.programs.take(program.name, parts_s, output_tokens)
        if self.tracer is not None:
            self.tracer.end_program(program.program_id, program.began_at_s + program.duration_s, parts_s)

    def count_refusal(self, tenant: str, reason: str) -> None:
        """Count a refused request; `tenant` is empty if none is known or at fault."""
        self.metrics.refusals.labels(tenant, reason).inc()


def _begin_trace(tracer: ProgramTracer, call: GatewayCall) -> None:
    tracer.begin_program(call.start.program_id, call.shown_program, call.start.name, time.time())


def _by_id(on_ended: Callable[[str], None], end: ProgramEnd) -> None:
    on_ended(end.program_id)
