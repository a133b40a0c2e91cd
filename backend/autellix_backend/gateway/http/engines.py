"""Engines for operators: their load, and how they join, drain and leave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import AfterValidator, BaseModel, Field

from autellix_backend.engines.base import EngineError
from autellix_backend.engines.factory import make_remote
from autellix_backend.engines.report_client import ReportClient
from autellix_backend.gateway.engines.handle import EngineHandle
from autellix_backend.gateway.engines.kv_memory import KvMemory, kv_memory
from autellix_backend.gateway.engines.view import engine_view
from autellix_backend.gateway.errors import ConflictError, InvalidRequestError
from autellix_backend.gateway.http.bodies import BodyRoute, Id
from autellix_backend.gateway.http.parameters import InForce, Models, Pool, admin_only, operator_only
from autellix_backend.gateway.http.refusals import refusals
from autellix_backend.reports.snapshot import AdmissionSnapshot, EngineSnapshot
from autellix_backend.settings import MAX_PORT, EngineKindChoice, SettingsError
from autellix_wire.paths import API_PREFIX

ENGINES_PATH = API_PREFIX + "/engines"
ONE_ENGINE = ENGINES_PATH + "/{name}"
MAX_ENGINES = 256
"""Engines in the pool at once: their names are labels of metrics."""
LINK_WAIT_S = 2.0
"""How long the answer waits for an added engine's first report."""


def _check_name(name: str) -> str:
    if "/" in name:
        raise ValueError("contains a slash; expected a name that fits into a path")
    return name


class NewEngine(BaseModel):
    """A running server to add to the pool."""

    url: str
    name: Annotated[Id, AfterValidator(_check_name)] | None = None
    kind: EngineKindChoice = "auto"
    report_port: Annotated[int, Field(ge=1, le=MAX_PORT)] | None = None
    """Port of its reports; by default 1,000 above that of the address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRow:
    """An engine and its load; from `running` on by its last snapshot, None without one."""

    name: str
    base_url: str
    models: list[str]
    """Models that it lists; none where it is the only engine, or its list is not known yet."""
    is_alive: bool
    state: str
    failure: str | None
    restarts: int
    sends_reports: bool
    reporting: str
    """`local` over a socket of this machine, `none` without our scheduler, else the state of the report link:
    `connecting`, `up`, `lost`, `absent` without a report port, `refused` with another secret or none, or
    `other` if it speaks another protocol."""
    scheduling: str
    """Who orders its calls, and whether it reports them, in words."""
    ordered_by: str
    """`gateway` or `engine`: who orders the calls that find no slot."""
    max_in_flight: int | None
    """The bound on this gateway's calls there, set or learned; None if the engine takes all."""
    saturation: float | None
    """What its programs need over what it has, of KV memory or slots; None while it is not up."""
    open_calls: int
    queued_calls: int
    """Calls that wait for it at the gateway."""
    prefill_s_per_token: float
    decode_s_per_token: float
    snapshot_age_s: float | None
    running: int | None = None
    waiting: int | None = None
    slots: int | None = None
    kv_share: float | None = None
    kv_total_blocks: int | None = None
    kv_block_tokens: int | None = None
    kv_tokens: int | None = None
    """The size of its KV memory, as a vLLM server without our scheduler states it in its metrics."""
    kv: KvMemory | None = None
    """Who holds its KV memory."""
    level_calls: tuple[int, ...] | None = None
    step: int | None = None
    mean_step_s: float | None = None
    active_programs: int | None = None
    """Programs whose calls may run, and those that wait; None where admission is off. The gateway estimates
    them for an engine that reports nothing."""
    inactive_programs: int | None = None
    working_set_tokens: int | None = None
    """The contexts of the active programs, and what they may fill."""
    working_set_capacity_tokens: int | None = None
    inactive_tokens: int | None = None
    """What the programs that wait for activation would add."""
    memory_wait_s: float | None = None
    """How long a program with a mean context would wait there for memory, as the balancer sees it."""
    boost_strength_s: float | None = None
    engine_version: str | None = None
    """vLLM's, our scheduler's, and the policy there, as an engine on another machine reports them."""
    scheduler_version: str | None = None
    policy: str | None = None
    dropped_reports: int | None = None
    """Reports and snapshots that it could not send to any gateway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTable:
    """The engines in the operator's order."""

    engines: list[EngineRow]


_SNAPSHOT_FIELDS = tuple(EngineRow.__annotations__.keys() & set(EngineSnapshot.__struct_fields__))
"""Fields of the row that are those of the snapshot."""

router = APIRouter(
    tags=["operators"],
    responses=refusals(401, 403, 500),
    route_class=BodyRoute,
    strict_content_type=False,
)


@router.get(ENGINES_PATH, dependencies=[admin_only("the list of engines")])
async def list_engines(pool: Pool) -> EngineTable:
    """List the engines and their load."""
    return EngineTable(engines=[_row(member) for member in pool])


@router.post(
    ENGINES_PATH,
    status_code=201,
    dependencies=[operator_only("adding engines")],
    responses=refusals(400, 409, 413),
)
async def add_engine(engine: NewEngine, pool: Pool, settings: InForce, models: Models) -> EngineRow:
    """Add a running engine to the pool."""
    ours = settings.engine
    if len(pool) >= MAX_ENGINES:
        raise ConflictError(f"the pool already has {MAX_ENGINES} engines, the maximum")
    name = engine.name or pool.free_name("remote")
    pool.check_free(name)
    try:
        remote = make_remote(ours, engine.url, name=name, kind=engine.kind, report_port=engine.report_port)
        await remote.start()
    except SettingsError as error:
        raise InvalidRequestError(f"url: {error.problem}; expected {error.expected}", param="url") from error
    except EngineError as error:
        raise InvalidRequestError(f"url: {error}", param="url") from error
    handle = pool.join(remote)
    await models.read()
    if handle.link.endpoints:
        await handle.link.settled(LINK_WAIT_S)
    return _row(handle)


@router.post(
    ONE_ENGINE + "/drain", dependencies=[operator_only("draining engines")], responses=refusals(404, 409)
)
async def drain_engine(name: str, pool: Pool) -> EngineRow:
    """Send an engine no further calls."""
    return _row(pool.drain(name))


@router.post(
    ONE_ENGINE + "/undrain", dependencies=[operator_only("draining engines")], responses=refusals(404, 409)
)
async def undrain_engine(name: str, pool: Pool) -> EngineRow:
    """Send a drained engine calls again."""
    return _row(pool.undrain(name))


@router.delete(
    ONE_ENGINE,
    status_code=202,
    dependencies=[operator_only("removing engines")],
    responses=refusals(404, 409),
)
async def remove_engine(name: str, pool: Pool) -> EngineRow:
    """Drain an engine, and remove it from the pool once its last call has ended."""
    return _row(pool.remove(name))


def _row(member: EngineHandle) -> EngineRow:
    engine, view = member.engine, engine_view(member)
    return EngineRow(
        name=engine.name,
        base_url=engine.base_url,
        models=list(member.models),
        is_alive=engine.is_alive(),
        state=member.state,
        failure=member.problem,
        restarts=member.supervisor.restarts,
        sends_reports=member.sends_reports,
        reporting=member.reporting.state,
        scheduling=member.reporting.text,
        ordered_by=member.reporting.ordered_by,
        max_in_flight=member.max_in_flight,
        saturation=member.saturation,
        open_calls=member.open_calls,
        queued_calls=len(member.queue),
        prefill_s_per_token=member.speed.prefill_s_per_token,
        decode_s_per_token=member.speed.decode_s_per_token,
        snapshot_age_s=view.age_s,
        memory_wait_s=member.memory.mean_wait_s if member.memory else None,
        kv_tokens=member.engine.kv_tokens,
        kv=kv_memory(view),
        **(_load(view.snapshot) if view.snapshot else {}),
        **(_working_set(member.admission) if member.admission else {}),
        **_versions(member.link),
    )


def _load(snapshot: EngineSnapshot) -> dict[str, Any]:
    total = snapshot.kv_total_blocks
    return {name: getattr(snapshot, name) for name in _SNAPSHOT_FIELDS} | {
        "kv_share": snapshot.kv_used_blocks / total if total else 0.0,
        "inactive_tokens": snapshot.demand.inactive_tokens if snapshot.demand else None,
        "boost_strength_s": snapshot.boost.strength_s if snapshot.boost else None,
    }


def _working_set(admission: AdmissionSnapshot) -> dict[str, Any]:
    return {
        "active_programs": admission.active_programs,
        "inactive_programs": admission.inactive_programs,
        "working_set_tokens": admission.working_set_tokens,
        "working_set_capacity_tokens": admission.capacity_tokens,
    }


def _versions(link: ReportClient) -> dict[str, Any]:
    facts = link.first_facts
    if facts is None:
        return {}
    return {
        "engine_version": facts.vllm,
        "scheduler_version": facts.version,
        "policy": facts.policy,
        "dropped_reports": sum(each.dropped for each in link.facts.values()),
    }
