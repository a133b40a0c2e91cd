"""What operators see: programs and their calls, engines, configuration, health and metrics."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from autellix_backend.engines.base import Engine
from autellix_backend.engines.supervisor import Supervisor
from autellix_backend.gateway.calls import CallDesk
from autellix_backend.gateway.errors import EngineUnavailableError, NotFoundError
from autellix_backend.gateway.tenants import Tenant, Tenants
from autellix_backend.observe.metrics import CONTENT_TYPE, GatewayMetrics
from autellix_backend.settings import Settings, settings_to_mapping
from autellix_backend.stores.base import CallView, ProgramStore, ProgramView
from autellix_wire import API_PREFIX, PROGRAMS_PATH


class AdminApi:
    """The read-only endpoints of one gateway."""

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        supervisor: Supervisor,
        store: ProgramStore,
        desk: CallDesk,
        metrics: GatewayMetrics,
        tenants: Tenants,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._supervisor = supervisor
        self._store = store
        self._desk = desk
        self._metrics = metrics
        self._tenants = tenants
        self._clock = clock

    def routes(self) -> list[Route]:
        """Return the routes of the endpoints."""
        return [
            Route(PROGRAMS_PATH, self.programs),
            Route(PROGRAMS_PATH + "/{program_id:path}", self.program),
            Route(API_PREFIX + "/engines", self.engines),
            Route(API_PREFIX + "/config", self.config),
            Route("/healthz", self.healthz),
            Route("/readyz", self.readyz),
            Route("/metrics", self.metrics),
        ]

    async def programs(self, request: Request) -> Response:
        """List the programs in the table: the tenant's own, or all for an admin."""
        now, tenant = self._clock(), self._tenants.of(request.scope)
        views = [view for view in await self._store.programs() if _is_visible(view, tenant)]
        return _json({"programs": [_program(view, tenant, now) for view in views]})

    async def program(self, request: Request) -> Response:
        """Show one program with its calls."""
        program_id, tenant = request.path_params["program_id"], self._tenants.of(request.scope)
        for scoped_id in tenant.candidates(program_id):
            view = await self._store.program(scoped_id)
            if view is not None:
                calls = [_call(call, view.first_arrival_s) for call in view.calls]
                return _json({**_program(view, tenant, self._clock()), "calls": calls})
        raise NotFoundError(f"there is no program {program_id!r}", param="program_id")

    async def engines(self, request: Request) -> Response:
        """List the engines."""
        self._tenants.of(request.scope).check_admin("the list of engines")
        engine = self._engine
        shown = {
            "name": engine.name,
            "base_url": engine.base_url,
            "is_alive": engine.is_alive(),
            "state": self._supervisor.state.value,
            "failure": engine.failure() or self._supervisor.reason,
            "restarts": self._supervisor.restarts,
            "has_accounting": engine.accounting_socket is not None,
            "open_calls": self._desk.open_count,
        }
        return _json({"engines": [shown]})

    async def config(self, request: Request) -> Response:
        """Show the settings in force."""
        self._tenants.of(request.scope).check_admin("the configuration")
        return _json(settings_to_mapping(self._settings))

    async def healthz(self, _request: Request) -> Response:
        """Say that the gateway runs."""
        return _json({"status": "ok"})

    async def readyz(self, _request: Request) -> Response:
        """Say whether calls can be answered; 503 with the reason if not."""
        if not self._supervisor.is_up:
            reason = self._supervisor.reason or self._engine.failure() or "it is not running"
            raise EngineUnavailableError(f"engine {self._engine.name} is not ready: {reason}")
        return _json({"status": "ready"})

    async def metrics(self, request: Request) -> Response:
        """Show the metrics in Prometheus' text format."""
        self._tenants.of(request.scope).check_admin("the page of metrics")
        counts = await self._store.counts()
        self._metrics.set_held(
            programs=counts.programs, sessions=counts.sessions, active_calls=counts.active_calls
        )
        return Response(self._metrics.render(), headers={"content-type": CONTENT_TYPE})


def _json(content: object) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json")


def _is_visible(view: ProgramView, tenant: Tenant) -> bool:
    return tenant.is_admin or tenant.owns(view.program_id)


def _program(view: ProgramView, tenant: Tenant, now: float) -> dict[str, object]:
    return {
        "program_id": tenant.shown(view.program_id),
        "name": view.name,
        "session_ids": [tenant.shown(session_id) for session_id in view.session_ids],
        "flags": view.flags,
        "intercepted_s": view.intercepted_s,
        "service_s": view.service_s,
        "wait_s": view.wait_s,
        "active_calls": view.active_calls,
        "finished_calls": view.finished_calls,
        "age_s": now - view.first_arrival_s,
        "idle_s": now - view.last_event_s if not view.active_calls else 0.0,
    }


def _call(call: CallView, origin_s: float) -> dict[str, object]:
    """Show a call with times since its program's first arrival; the store's clock has no meaning outside."""
    end = call.end
    return {
        "call_id": call.call_id,
        "thread_id": call.thread_id,
        "parents": call.parents,
        "flags": call.flags,
        "interceptions": [{"tool": tool, "duration_s": seconds} for tool, seconds in call.interceptions],
        "start_s": call.start_s - origin_s,
        "finish_s": None if call.finish_s is None else call.finish_s - origin_s,
        "outcome": None if end is None else end.outcome,
        "service_s": None if end is None else end.service_s,
        "wait_s": None if end is None else end.wait_s,
        "inherited_service_s": None if end is None else end.inherited_service_s,
        "level": None if end is None else end.level,
        "preemptions": None if end is None else end.preemptions,
        "prompt_tokens": None if end is None else end.prompt_tokens,
        "output_tokens": None if end is None else end.output_tokens,
        "estimated": None if end is None else end.is_estimated,
    }
