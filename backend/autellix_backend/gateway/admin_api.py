"""What operators see: engines, configuration, health and metrics."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from autellix_backend.engines.base import Engine
from autellix_backend.engines.supervisor import Supervisor
from autellix_backend.gateway.calls import CallDesk
from autellix_backend.gateway.dispatch import Dispatcher
from autellix_backend.gateway.errors import EngineUnavailableError, ShuttingDownError
from autellix_backend.gateway.overview import Overview
from autellix_backend.gateway.situation import EngineView
from autellix_backend.gateway.tenants import Tenants
from autellix_backend.observe.metrics import CONTENT_TYPE, GatewayMetrics
from autellix_backend.settings import Settings, settings_to_mapping
from autellix_backend.stores.base import ProgramStore
from autellix_wire import API_PREFIX


class AdminApi:
    """The read-only endpoints of one gateway."""

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        supervisor: Supervisor,
        dispatcher: Dispatcher,
        store: ProgramStore,
        desk: CallDesk,
        metrics: GatewayMetrics,
        tenants: Tenants,
        overview: Overview,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._supervisor = supervisor
        self._dispatcher = dispatcher
        self._store = store
        self._desk = desk
        self._metrics = metrics
        self._tenants = tenants
        self._overview = overview

    def routes(self) -> list[Route]:
        """Return the routes of the endpoints."""
        return [
            Route(API_PREFIX + "/engines", self.engines),
            Route(API_PREFIX + "/config", self.config),
            Route("/healthz", self.healthz),
            Route("/readyz", self.readyz),
            Route("/metrics", self.metrics),
        ]

    async def engines(self, request: Request) -> Response:
        """List the engines and their load."""
        self._tenants.of(request.scope).check_admin("the list of engines")
        engine = self._engine
        view = self._overview.engines()[engine.name]
        shown = _engine(engine, self._supervisor, view, self._desk.open_count)
        shown["held_calls"] = self._dispatcher.held_count
        return _json({"engines": [shown]})

    async def config(self, request: Request) -> Response:
        """Show the settings in force."""
        self._tenants.of(request.scope).check_admin("the configuration")
        return _json(settings_to_mapping(self._settings))

    async def healthz(self, _request: Request) -> Response:
        """Say that the gateway runs."""
        return _json({"status": "ok"})

    async def readyz(self, _request: Request) -> Response:
        """Say whether calls can be answered, and with what less than all; 503 with the reason if not."""
        if self._dispatcher.is_draining:
            raise ShuttingDownError
        if not self._supervisor.is_up:
            raise EngineUnavailableError(
                f"engine {self._engine.name} is not ready: {self._supervisor.problem}"
            )
        problem = self._store.failure()
        return _json({"status": "ready"} if problem is None else {"status": "degraded", "reason": problem})

    async def metrics(self, request: Request) -> Response:
        """Show the metrics in Prometheus' text format."""
        self._tenants.of(request.scope).check_admin("the page of metrics")
        self._measure_engines()
        self._dispatcher.measure()
        counts = await self._store.counts()
        self._metrics.set_held(
            programs=counts.programs, sessions=counts.sessions, active_calls=counts.active_calls
        )
        return Response(self._metrics.render(), headers={"content-type": CONTENT_TYPE})

    def _measure_engines(self) -> None:
        gauges = self._metrics.engines
        gauges.clear()
        for name, view in self._overview.engines().items():
            if view.snapshot is not None and view.age_s is not None:
                gauges.set(name, view.snapshot, view.age_s)


def _json(content: object) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json")


def _engine(engine: Engine, supervisor: Supervisor, view: EngineView, open_calls: int) -> dict[str, object]:
    snapshot = view.snapshot
    return {
        "name": engine.name,
        "base_url": engine.base_url,
        "is_alive": engine.is_alive(),
        "state": supervisor.state.value,
        "failure": engine.failure() or supervisor.reason,
        "restarts": supervisor.restarts,
        "has_accounting": engine.accounting_socket is not None,
        "open_calls": open_calls,
        "snapshot_age_s": view.age_s,
        "running": snapshot.running if snapshot else None,
        "waiting": snapshot.waiting if snapshot else None,
        "slots": snapshot.slots if snapshot else None,
        "kv_share": _share(snapshot.kv_used_blocks, snapshot.kv_total_blocks) if snapshot else None,
        "kv_total_blocks": snapshot.kv_total_blocks if snapshot else None,
        "level_calls": snapshot.level_calls if snapshot else None,
        "step": snapshot.step if snapshot else None,
        "mean_step_s": snapshot.mean_step_s if snapshot else None,
    }


def _share(used: int, total: int) -> float:
    return used / total if total else 0.0
