"""The gateway's components, built from the settings and connected."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from functools import partial

from autellix_backend.console.explain.event_feed import EventFeed
from autellix_backend.console.explain.recent_load import RecentLoad
from autellix_backend.console.history.critical_path import spent
from autellix_backend.console.history.groups import ProgramGroups
from autellix_backend.console.history.history import PastProgram, ProgramHistory
from autellix_backend.core.balance import make_balancer
from autellix_backend.engines.base import Engine
from autellix_backend.engines.supervisor import EngineChange, EngineState
from autellix_backend.gateway.calls.call import GatewayCall
from autellix_backend.gateway.calls.outbound import EngineArguments
from autellix_backend.gateway.calls.registry import CallRegistry
from autellix_backend.gateway.calls.router import Router
from autellix_backend.gateway.classes import ProgramClasses
from autellix_backend.gateway.engines.handle import EngineHandle
from autellix_backend.gateway.engines.models import ModelLists
from autellix_backend.gateway.engines.pool import EnginePool
from autellix_backend.gateway.fairness import AnswerTurns
from autellix_backend.gateway.identity.identity import IdentityResolver
from autellix_backend.gateway.identity.running_sessions import SESSION_TTL_S, RunningSessions
from autellix_backend.gateway.identity.session_tokens import SessionTokens
from autellix_backend.gateway.tenancy.file import load_tenants
from autellix_backend.gateway.tenancy.intake import Intake
from autellix_backend.gateway.tenancy.limiter import Limiter
from autellix_backend.gateway.tenancy.open_sessions import OpenSessions
from autellix_backend.gateway.tenancy.tenants import Tenants
from autellix_backend.observe.call_log import CallLog
from autellix_backend.observe.genai_metrics import make_genai_metrics
from autellix_backend.observe.metrics import GatewayMetrics
from autellix_backend.observe.operator_log import AuditLog, FailureLog
from autellix_backend.observe.tracing import make_tracer
from autellix_backend.settings import Settings, TenantLimits
from autellix_backend.stores.base import ProgramEnd, ProgramStore
from autellix_backend.stores.factory import make_store


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
        gateway, observe = settings.gateway, settings.observe
        self.settings = settings
        self.clock = clock
        self.closing = asyncio.Event()
        """Set when the server ends: requests that clients keep open end too."""
        self.tenants = tenants or load_tenants(settings)
        self.metrics = metrics = GatewayMetrics(observe.program_names)
        self.store = store or make_store(
            settings, session_ttl_s=SESSION_TTL_S, clock=clock, on_fallback=metrics.store_fallbacks.inc
        )
        metrics.follow_store(self.store.failure)
        self.limiter = self._make_limiter()
        self.intake = self._make_intake()
        self.turns = AnswerTurns()
        self.sessions = OpenSessions(ttl_s=SESSION_TTL_S, on_refusal=metrics.count_refusal)
        self.tokens = SessionTokens(
            gateway.token_secret,
            RunningSessions(
                self.store, clock=clock, is_shared=settings.store.is_shared, grace_s=SESSION_TTL_S
            ),
            is_strict=gateway.strict_identity,
            has_keys=self.tenants.has_keys,
        )
        self.resolver = IdentityResolver(gateway, metrics, self.store, clock=clock)
        self.call_log = None if observe.call_log is None else CallLog(observe.call_log, metrics.registry)
        self.audit = AuditLog()
        self.tracer = make_tracer(observe.otlp_endpoint, os.environ)
        self.genai_metrics = make_genai_metrics(observe.otlp_endpoint, os.environ)
        self.classes = ProgramClasses()
        self.history = ProgramHistory(clock=clock)
        self.groups = ProgramGroups(self.history.living, ttl_s=gateway.program_idle_s)
        self.load = RecentLoad(time.time)
        self.replaying = asyncio.Lock()
        """Held while recent programs are simulated."""
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
        gateway_id = self.registry.gateway_id
        self.arguments = EngineArguments(settings.scheduler, self.classes, gateway_id, clock=clock)
        self.feed = feed = EventFeed(self.registry.find, time.time, metrics.events_dropped.inc)
        metrics.event_subscribers.set_function(lambda: feed.subscriber_count)
        make_handle = partial(
            EngineHandle,
            settings=settings,
            metrics=metrics,
            gateway_id=gateway_id,
            hides_keys=self.tenants.has_keys,
            clock=clock,
            on_report=self.registry.on_report,
            on_snapshot=feed.snapshot_taken,
        )
        self.pool = EnginePool(make_handle, metrics.forget_engine)
        self.pool.subscribe(self._on_engine_change)
        self.models = ModelLists(self.pool, settings.engine.api_key, clock)
        balancer = partial(make_balancer, settings.balancer.name, settings.balancer.threshold_tokens)
        self.router = Router(self.pool, balancer, partial(metrics.count_refusal, ""))
        self._subscribe()
        for engine in engines:
            self.pool.join(engine)

    def _subscribe(self) -> None:
        """Subscribe the parts that follow calls and programs."""
        registry, history = self.registry, self.history
        registry.subscribe(on_settled=self.metrics.calls.take)
        registry.subscribe(on_settled=FailureLog().take)
        if self.call_log is not None:
            registry.subscribe(on_settled=self.call_log.put)
        for exporter in (self.tracer, self.genai_metrics):
            if exporter is not None:
                registry.subscribe(on_settled=exporter.take)
        if self.limiter is not None:
            registry.subscribe(on_settled=self.limiter.on_call_settled)
        registry.subscribe(on_begun=history.on_call_begun, on_settled=history.on_call_settled)
        registry.subscribe(on_begun=self.groups.on_call_begun)
        history.subscribe(self.groups.on_program_ended)
        history.subscribe(self._observe_program)
        if self.tracer is not None:
            registry.subscribe(on_begun=self._begin_trace)
        registry.subscribe(on_begun=self.feed.on_call_begun, on_settled=self.feed.on_call_settled)
        registry.subscribe(on_settled=self.router.on_call_settled)
        registry.subscribe(on_settled=self.load.on_call_settled)
        self.store.subscribe(self._on_program_ended)

    def _on_program_ended(self, end: ProgramEnd) -> None:
        for part in (self.limiter, self.history, self.feed, self.router, self.pool):
            if part is not None:
                part.on_program_ended(end.program_id)
        self.classes.on_program_ended(end)

    def look_for_stragglers(self) -> None:
        """Publish the programs that have come to take far longer than the others of their group."""
        for straggler in self.groups.take_stragglers(self.clock()):
            self.feed.on_straggler(straggler)

    async def share_budgets(self, tenants: Iterable[str] = ()) -> None:
        """Share what was used of today's budgets with other gateways, and with this one after a restart."""
        if self.limiter is not None:
            await self.limiter.share(self.store.spend, self.clock(), tenants)

    def _make_limiter(self) -> Limiter | None:
        if not self.tenants.has_keys and self.settings.limits == TenantLimits():
            return None
        return Limiter(epoch_s=time.time() - self.clock(), on_refusal=self.metrics.count_refusal)

    def _make_intake(self) -> Intake:
        gateway = self.settings.gateway
        max_bytes = max(gateway.max_incoming_bytes, gateway.max_body_bytes)
        # Without tenants no half is kept for others.
        share_bytes = max_bytes // 2 if self.tenants.has_keys else max_bytes
        share_bytes = max(share_bytes, gateway.max_body_bytes)
        return Intake(max_bytes, share_bytes, self.limiter, self.metrics.count_refusal)

    def _on_engine_change(self, change: EngineChange) -> None:
        self.metrics.set_engine(
            change.engine,
            is_up=change.state is EngineState.UP,
            is_restarting=change.state is EngineState.RESTARTING,
        )
        self.feed.engine_changed(change.engine, change.state.value, change.reason)

    def _begin_trace(self, call: GatewayCall) -> None:
        assert self.tracer is not None
        self.tracer.begin_program(call.start.program_id, call.shown_program, call.start.name, time.time())

    def _observe_program(self, program: PastProgram) -> None:
        """Count an ended program, and close its span."""
        parts_s = spent(program).parts_s
        usages = (call.answer_usage for call in program.calls)
        output_tokens = sum(usage.output_tokens for usage in usages if usage is not None)
        self.metrics.programs.take(program.name, parts_s, output_tokens)
        self.load.on_program_ended(program.ended_at_s, program.duration_s)
        if self.tracer is not None:
            self.tracer.end_program(program.program_id, program.began_at_s + program.duration_s, parts_s)
