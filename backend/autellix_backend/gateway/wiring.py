"""The call path of a gateway: its parts, built from the settings and connected."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from autellix_backend.core.balance import make_balancer
from autellix_backend.engines.base import Engine
from autellix_backend.engines.supervisor import EngineChange, EngineState
from autellix_backend.gateway.calls.outbound import EngineArguments
from autellix_backend.gateway.calls.prefix_doctor import PrefixDoctor
from autellix_backend.gateway.calls.registry import CallRegistry
from autellix_backend.gateway.calls.router import Router
from autellix_backend.gateway.engines.handle import EngineHandle
from autellix_backend.gateway.engines.models import ModelLists
from autellix_backend.gateway.engines.pool import EnginePool
from autellix_backend.gateway.sessions.running_sessions import SESSION_TTL_S, RunningSessions
from autellix_backend.gateway.sessions.session_tokens import SessionTokens
from autellix_backend.gateway.tenancy.file import load_tenants
from autellix_backend.gateway.tenancy.intake import MAX_INCOMING_BYTES, Intake
from autellix_backend.gateway.tenancy.limiter import Limiter
from autellix_backend.gateway.tenancy.open_sessions import OpenSessions
from autellix_backend.gateway.tenancy.tenants import Tenants
from autellix_backend.identity.classes import ProgramClasses
from autellix_backend.identity.identity import IdentityResolver
from autellix_backend.observe.call_log import CallLog
from autellix_backend.observe.genai_metrics import make_genai_metrics
from autellix_backend.observe.metrics import GatewayMetrics
from autellix_backend.observe.operator_log import AuditLog, FailureLog
from autellix_backend.observe.tracing import make_tracer
from autellix_backend.repeating import repeating
from autellix_backend.settings import Settings, TenantLimits
from autellix_backend.stores.base import ProgramEnd, ProgramStore, tenant_of
from autellix_backend.stores.factory import make_store

REAP_PERIOD_S = 1.0
CLOSE_TIMEOUT_S = 5.0
"""How long the end waits for the disk of the call log."""


class Gateway:
    """The parts of one gateway through which calls pass, built but not running.

    It knows nothing of those that show programs: they subscribe to its registry, store and pool.
    """

    def __init__(
        self,
        settings: Settings,
        engines: Iterable[Engine],
        *,
        store: ProgramStore | None,
        tenants: Tenants | None,
        clock: Callable[[], float],
    ) -> None:
        """Build the parts; the arguments are those of `create_app`.

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
        self.sessions = OpenSessions(ttl_s=SESSION_TTL_S, on_refusal=metrics.count_refusal)
        self.tokens = SessionTokens(
            gateway.token_secret,
            RunningSessions(
                self.store, clock=clock, is_shared=settings.store.is_shared, grace_s=SESSION_TTL_S
            ),
            is_strict=gateway.strict_identity,
            has_keys=self.tenants.has_keys,
        )
        self.resolver = IdentityResolver(
            self.store,
            clock=clock,
            idle_s=gateway.program_idle_s,
            secret=gateway.token_secret,
            on_read=metrics.count_identity,
        )
        self.call_log = None if observe.call_log is None else CallLog(observe.call_log, metrics.registry)
        self.audit = AuditLog()
        self.tracer = make_tracer(observe.otlp_endpoint, os.environ)
        self.genai_metrics = make_genai_metrics(observe.otlp_endpoint, os.environ)
        self.classes = ProgramClasses()
        readers_of_usage = (self.call_log, self.limiter, self.tracer, self.genai_metrics)
        self.doctor = (
            PrefixDoctor(metrics, idle_s=gateway.program_idle_s) if gateway.prefix_diagnosis else None
        )
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
            examine=None if self.doctor is None else self.doctor.examine,
        )
        gateway_id = self.registry.gateway_id
        self.arguments = EngineArguments(settings.scheduler, self.classes, gateway_id, clock=clock)
        make_handle = partial(
            EngineHandle,
            settings=settings,
            metrics=metrics,
            gateway_id=gateway_id,
            hides_keys=self.tenants.has_keys,
            clock=clock,
            on_report=self.registry.on_report,
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
        """Subscribe the parts that follow calls and the ends of programs."""
        registry = self.registry
        registry.subscribe(on_settled=self.metrics.calls.take)
        registry.subscribe(on_settled=FailureLog().take)
        if self.call_log is not None:
            registry.subscribe(on_settled=self.call_log.put)
        for exporter in (self.tracer, self.genai_metrics):
            if exporter is not None:
                registry.subscribe(on_settled=exporter.take)
        if self.limiter is not None:
            registry.subscribe(on_settled=self.limiter.on_call_settled)
        registry.subscribe(on_settled=self.router.on_call_settled)
        self.store.subscribe(self._on_program_ended)

    def _on_program_ended(self, end: ProgramEnd) -> None:
        for part in (self.limiter, self.router, self.pool):
            if part is not None:
                part.on_program_ended(end.program_id)
        if self.doctor is not None:
            self.doctor.on_program_ended(tenant_of(end.class_id), end.program_id)
        self.classes.on_program_ended(end)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Supervise the engines and reap what is idle while inside; at the end settle and close all."""
        async with AsyncExitStack() as stack:
            # Last at the end, when every call is settled.
            for exporter in (self.tracer, self.genai_metrics):
                if exporter is not None:
                    stack.push_async_callback(asyncio.to_thread, exporter.close)
            if self.call_log is not None:
                self.call_log.open()
                stack.push_async_callback(asyncio.to_thread, self.call_log.close, CLOSE_TIMEOUT_S)
            await self.store.open()
            stack.push_async_callback(self.store.close)
            await self._share_budgets(self.tenants.with_day_budgets)
            stack.push_async_callback(self._share_budgets)
            for end in await self.store.recent_ends():
                self.classes.on_program_ended(end)
            self.pool.open()
            stack.push_async_callback(self.pool.close)
            await self.models.open()
            stack.push_async_callback(self.models.close)
            await stack.enter_async_context(repeating(REAP_PERIOD_S, self._reap))
            # First at the end: calls that the server cancelled still get their reports.
            stack.push_async_callback(self.registry.drained)
            yield

    async def _reap(self) -> None:
        self.resolver.expire(self.clock())
        if self.doctor is not None:
            self.doctor.expire(self.clock())
        self.sessions.expire(self.clock())
        reaped = await self.store.reap(self.clock())
        await self._share_budgets()
        self.metrics.reaped.labels("program").inc(len(reaped.programs))
        self.metrics.reaped.labels("session").inc(len(reaped.sessions))

    async def _share_budgets(self, tenants: Iterable[str] = ()) -> None:
        """Share what was used of today's budgets with other gateways, and with this one after a restart."""
        if self.limiter is not None:
            await self.limiter.share(self.store.spend, self.clock(), tenants)

    def _make_limiter(self) -> Limiter | None:
        if not self.tenants.has_keys and self.settings.limits == TenantLimits():
            return None
        return Limiter(epoch_s=time.time() - self.clock(), on_refusal=self.metrics.count_refusal)

    def _make_intake(self) -> Intake:
        gateway = self.settings.gateway
        max_bytes = max(MAX_INCOMING_BYTES, gateway.max_body_bytes)
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
