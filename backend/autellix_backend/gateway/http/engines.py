"""The engines, for operators: what they do, and how they join and leave."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from autellix_backend.engines.base import EngineError
from autellix_backend.engines.factory import make_remote
from autellix_backend.gateway.calls.overview import Overview
from autellix_backend.gateway.engines.handle import EngineHandle
from autellix_backend.gateway.engines.pool import EnginePool
from autellix_backend.gateway.errors import ConflictError, InvalidRequestError
from autellix_backend.gateway.explain.situation import EngineView
from autellix_backend.gateway.http.requests import ClientGoneError, read_body, read_headers
from autellix_backend.gateway.tenancy.tenants import Tenants
from autellix_backend.settings import ENGINE_KINDS, Settings, SettingsError
from autellix_wire import API_PREFIX, InvalidIdError, check_id

ENGINES_PATH = API_PREFIX + "/engines"
MAX_ENGINES = 256
"""Engines that may be in the pool at once: their names are labels of metrics."""


class _Join(msgspec.Struct, frozen=True):
    """The body of a request that adds an engine."""

    url: str
    name: str | None = None
    kind: str = "auto"


class EnginesApi:
    """The endpoints over one pool."""

    def __init__(self, pool: EnginePool, settings: Settings, overview: Overview, tenants: Tenants) -> None:
        self._pool = pool
        self._settings = settings.engine
        self._max_body_bytes = settings.gateway.max_body_bytes
        self._overview = overview
        self._tenants = tenants

    def routes(self) -> list[Route]:
        """Return the routes of the endpoints."""
        return [
            Route(ENGINES_PATH, self.list, methods=["GET"]),
            Route(ENGINES_PATH, self.add, methods=["POST"]),
            Route(ENGINES_PATH + "/{name}/drain", self.drain, methods=["POST"]),
            Route(ENGINES_PATH + "/{name}/undrain", self.undrain, methods=["POST"]),
            Route(ENGINES_PATH + "/{name}", self.remove, methods=["DELETE"]),
        ]

    async def list(self, request: Request) -> Response:
        """List the engines and their load."""
        self._tenants.of(request.scope).check_admin("the list of engines")
        views = self._overview.engines()
        return _json({"engines": [_shown(member, views[member.name]) for member in self._pool]})

    async def add(self, request: Request) -> Response:
        """Send calls to a running engine too."""
        self._tenants.of(request.scope).check_admin("adding engines")
        try:
            join = _read_join(
                await read_body(read_headers(request.scope), request.receive, self._max_body_bytes)
            )
        except ClientGoneError:
            return Response(status_code=204)
        if len(self._pool) >= MAX_ENGINES:
            raise ConflictError(f"there are {MAX_ENGINES} engines already, and no room for more")
        name = join.name or self._pool.free_name("remote")
        try:
            engine = make_remote(self._settings, join.url, name=name, kind=join.kind)
        except SettingsError as error:
            raise InvalidRequestError(
                f"url: {error.problem}; expected {error.expected}", param="url"
            ) from error
        self._pool.check_free(name)
        try:
            await engine.start()
        except EngineError as error:
            raise InvalidRequestError(f"url: {error}", param="url") from error
        return self._answer(self._pool.join(engine), 201)

    async def drain(self, request: Request) -> Response:
        """Send an engine no further calls."""
        self._tenants.of(request.scope).check_admin("draining engines")
        return self._answer(self._pool.drain(request.path_params["name"]), 200)

    async def undrain(self, request: Request) -> Response:
        """Send a drained engine calls again."""
        self._tenants.of(request.scope).check_admin("draining engines")
        return self._answer(self._pool.undrain(request.path_params["name"]), 200)

    async def remove(self, request: Request) -> Response:
        """Send an engine no further calls, and part with it once it has none left."""
        self._tenants.of(request.scope).check_admin("removing engines")
        return self._answer(self._pool.remove(request.path_params["name"]), 202)

    def _answer(self, member: EngineHandle, status: int) -> Response:
        view = self._overview.view(member)
        return Response(msgspec.json.encode(_shown(member, view)), status, media_type="application/json")


def _read_join(data: bytes) -> _Join:
    try:
        join = msgspec.json.decode(data, type=_Join)
        if join.name is not None:
            check_id(join.name, "name")
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequestError(
            f"the body is not an engine: {error}; expected a JSON object with its url, perhaps name and kind",
            param="url",
        ) from error
    except InvalidIdError as error:
        raise InvalidRequestError(str(error), param="name") from error
    if join.name is not None and "/" in join.name:
        raise InvalidRequestError("name: holds a slash; expected a name that fits into a path", param="name")
    if join.kind not in ENGINE_KINDS:
        raise InvalidRequestError(
            f"kind: is {join.kind!r}; expected one of {', '.join(ENGINE_KINDS)}", param="kind"
        )
    return join


def _json(content: object) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json")


def _shown(member: EngineHandle, view: EngineView) -> dict[str, object]:
    engine, snapshot = member.engine, view.snapshot
    return {
        "name": engine.name,
        "base_url": engine.base_url,
        "is_alive": engine.is_alive(),
        "state": member.state,
        "failure": engine.failure() or member.supervisor.reason,
        "restarts": member.supervisor.restarts,
        "has_accounting": member.sends_reports,
        "open_calls": member.open_calls,
        "held_calls": len(member.queue),
        "prefill_s_per_token": member.speed.prefill_s_per_token,
        "decode_s_per_token": member.speed.decode_s_per_token,
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
