"""Settings, health, metrics and the OpenAPI document, for operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from autellix_backend.gateway.engines.pool import EnginePool
from autellix_backend.gateway.engines.reporting import LOCAL
from autellix_backend.gateway.engines.view import engine_view
from autellix_backend.gateway.errors import EngineUnavailableError, ShuttingDownError
from autellix_backend.gateway.http.openapi import openapi_document
from autellix_backend.gateway.http.parameters import InForce, Log, Measured, Pool, Store, admin_only
from autellix_backend.gateway.http.refusals import refusals
from autellix_backend.observe.call_log import CallLog
from autellix_backend.observe.metrics import CONTENT_TYPE, GatewayMetrics
from autellix_backend.settings import settings_to_mapping
from autellix_wire.paths import API_PREFIX

_NEEDS_NO_KEY: dict[str, Any] = {"security": []}


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayHealth:
    """The gateway's health."""

    status: str
    """`ok`, `ready` or `degraded`."""
    reason: str | None = None
    """Why it is degraded."""
    engines: dict[str, str] | None = None
    """What the engines at `engine.urls` report: see `reporting` of the list of engines."""
    ordered_by: dict[str, str] | None = None
    """Who orders the calls of those engines: `gateway` or `engine`."""


router = APIRouter(tags=["operators"], responses=refusals(500))


@router.get(
    API_PREFIX + "/config", dependencies=[admin_only("the configuration")], responses=refusals(401, 403)
)
async def config(settings: InForce) -> dict[str, Any]:
    """Show the settings in force, secrets hidden."""
    return settings_to_mapping(settings)


@router.get("/healthz", response_model_exclude_none=True, openapi_extra=_NEEDS_NO_KEY)
async def healthz() -> GatewayHealth:
    """Report that the gateway runs."""
    return GatewayHealth(status="ok")


@router.get("/readyz", response_model_exclude_none=True, responses=refusals(503), openapi_extra=_NEEDS_NO_KEY)
async def readyz(pool: Pool, store: Store, call_log: Log) -> GatewayHealth:
    """Report whether the gateway can answer calls; `degraded` has a reason."""
    _check_ready(pool)
    reporting = {member.name: member.reporting for member in pool}
    problems = [
        store.failure(),
        _call_log_problem(call_log),
        *(f"{member.name}: {problem}" for member in pool if (problem := member.refusals.problem)),
        *(f"{name}: {each.problem}" for name, each in reporting.items() if each.problem),
    ]
    reason = "; ".join(filter(None, problems)) or None
    remote = {name: each for name, each in reporting.items() if each.state != LOCAL}
    return GatewayHealth(
        status="ready" if reason is None else "degraded",
        reason=reason,
        engines={name: each.state for name, each in remote.items()} or None,
        ordered_by={name: each.ordered_by for name, each in remote.items()} or None,
    )


@router.get("/health", response_class=Response, responses=refusals(503), openapi_extra=_NEEDS_NO_KEY)
@router.get("/ping", response_class=Response, responses=refusals(503), openapi_extra=_NEEDS_NO_KEY)
@router.post("/ping", response_class=Response, responses=refusals(503), openapi_extra=_NEEDS_NO_KEY)
async def health(pool: Pool) -> Response:
    """Answer with an empty body, as vLLM does, if the gateway can answer calls."""
    _check_ready(pool)
    return Response()


@router.get(
    "/metrics",
    dependencies=[admin_only("the page of metrics")],
    responses=refusals(401, 403, 503),
    response_class=PlainTextResponse,
)
async def metrics(page: Measured, pool: Pool, store: Store) -> Response:
    """Return the metrics in Prometheus' text format."""
    _measure_engines(page, pool)
    counts = await store.counts()
    page.set_stored(programs=counts.programs, sessions=counts.sessions, active_calls=counts.active_calls)
    return Response(page.render(), headers={"content-type": CONTENT_TYPE})


@router.get("/openapi.json", responses=refusals(401))
async def openapi(request: Request) -> dict[str, Any]:
    """Return this description of the API."""
    return openapi_document(request.app)


def _call_log_problem(log: CallLog | None) -> str | None:
    problem = None if log is None else log.problem
    return None if problem is None else f"observe.call_log: cannot write ({problem})"


def _check_ready(pool: EnginePool) -> None:
    if pool.is_shutting_down:
        raise ShuttingDownError
    if not any(member.supervisor.is_up and not member.is_draining for member in pool):
        raise EngineUnavailableError(_problem(pool))


def _measure_engines(page: GatewayMetrics, pool: EnginePool) -> None:
    page.engines.clear()
    for member in pool:
        member.measure(page.engines)
        view = engine_view(member)
        if (working_set := member.admission) is not None:
            page.engines.set_working_set(member.name, working_set)
        if view.snapshot is not None and view.age_s is not None:
            page.engines.set_snapshot(member.name, view.snapshot, view.age_s)
            if view.snapshot.kv_offload is not None:
                page.offload.advance(member.name, view.snapshot.kv_offload)


def _problem(pool: EnginePool) -> str:
    problems = [
        f"engine {member.name} is not ready: {member.supervisor.problem}"
        for member in pool
        if not member.is_draining
    ]
    return "; ".join(problems) or "there is no engine"
