"""What operators see of the gateway: configuration, health and metrics."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from autellix_backend.gateway.calls.overview import Overview
from autellix_backend.gateway.engines.pool import EnginePool
from autellix_backend.gateway.errors import EngineUnavailableError, ShuttingDownError
from autellix_backend.gateway.tenancy.tenants import Tenants
from autellix_backend.observe.metrics import CONTENT_TYPE, GatewayMetrics
from autellix_backend.settings import Settings, settings_to_mapping
from autellix_backend.stores.base import ProgramStore
from autellix_wire import API_PREFIX


class AdminApi:
    """The read-only endpoints of one gateway."""

    def __init__(
        self,
        settings: Settings,
        pool: EnginePool,
        store: ProgramStore,
        metrics: GatewayMetrics,
        tenants: Tenants,
        overview: Overview,
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._store = store
        self._metrics = metrics
        self._tenants = tenants
        self._overview = overview

    def routes(self) -> list[Route]:
        """Return the routes of the endpoints."""
        return [
            Route(API_PREFIX + "/config", self.config),
            Route("/healthz", self.healthz),
            Route("/readyz", self.readyz),
            Route("/metrics", self.metrics),
        ]

    async def config(self, request: Request) -> Response:
        """Show the settings in force."""
        self._tenants.of(request.scope).check_admin("the configuration")
        return _json(settings_to_mapping(self._settings))

    async def healthz(self, _request: Request) -> Response:
        """Say that the gateway runs."""
        return _json({"status": "ok"})

    async def readyz(self, _request: Request) -> Response:
        """Say whether calls can be answered, and with what less than all; 503 with the reason if not."""
        if self._pool.is_shutting_down:
            raise ShuttingDownError
        if not any(member.supervisor.is_up and not member.is_draining for member in self._pool):
            raise EngineUnavailableError(_problem(self._pool))
        problem = self._store.failure()
        return _json({"status": "ready"} if problem is None else {"status": "degraded", "reason": problem})

    async def metrics(self, request: Request) -> Response:
        """Show the metrics in Prometheus' text format."""
        self._tenants.of(request.scope).check_admin("the page of metrics")
        self._measure_engines()
        for member in self._pool:
            member.measure(self._metrics.queues)
        counts = await self._store.counts()
        self._metrics.set_stored(
            programs=counts.programs, sessions=counts.sessions, active_calls=counts.active_calls
        )
        return Response(self._metrics.render(), headers={"content-type": CONTENT_TYPE})

    def _measure_engines(self) -> None:
        gauges = self._metrics.engines
        gauges.clear()
        for name, view in self._overview.engines().items():
            if view.snapshot is not None and view.age_s is not None:
                gauges.set(name, view.snapshot, view.age_s)
                if view.snapshot.kv_swap is not None:
                    self._metrics.offload.advance(name, view.snapshot.kv_swap)


def _json(content: object) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json")


def _problem(pool: EnginePool) -> str:
    problems = [
        f"engine {member.name} is not ready: {member.supervisor.problem}"
        for member in pool
        if not member.is_draining
    ]
    return "; ".join(problems) or "there is no engine"
