"""What operators see of programs: the table, one program with its calls, and why it is not further."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from autellix_backend.core.config import SchedulerConfig
from autellix_backend.gateway.calls.overview import Overview
from autellix_backend.gateway.errors import InvalidRequestError, NotFoundError
from autellix_backend.gateway.explain.situation import ProgramState
from autellix_backend.gateway.explain.views import critical_path_s, show_calls, show_program
from autellix_backend.gateway.explain.why import explain_program
from autellix_backend.gateway.tenancy.tenants import Tenant, Tenants
from autellix_backend.stores.base import ProgramStore, ProgramView
from autellix_wire import PROGRAMS_PATH

DEFAULT_LIMIT = 200
MAX_LIMIT = 10_000
ONE_PROGRAM = PROGRAMS_PATH + "/{program_id:path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListQuery:
    """Which programs are asked for."""

    limit: int = DEFAULT_LIMIT
    state: ProgramState | None = None

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str]) -> ListQuery:
        """Read the query's parameters.

        Raises:
            InvalidRequestError: for a bad value; `param` names it.
        """
        state = parameters.get("state")
        if state is not None and state not in set(ProgramState):
            known = ", ".join(ProgramState)
            raise InvalidRequestError(f"state is {state!r}; expected one of {known}", param="state")
        text = parameters.get("limit", str(DEFAULT_LIMIT))
        is_number = text.isascii() and text.isdecimal() and len(text) < 10
        if not (is_number and 1 <= int(text) <= MAX_LIMIT):
            raise InvalidRequestError(f"limit is {text!r}; expected 1 to {MAX_LIMIT}", param="limit")
        return cls(limit=int(text), state=None if state is None else ProgramState(state))


class ProgramsApi:
    """The read-only endpoints over one store."""

    def __init__(
        self, store: ProgramStore, overview: Overview, scheduler: SchedulerConfig, tenants: Tenants
    ) -> None:
        self._tenants = tenants
        self._store = store
        self._overview = overview
        self._scheduler = scheduler

    def routes(self) -> list[Route]:
        """Return the routes of the endpoints."""
        return [
            Route(PROGRAMS_PATH, self.list_programs),
            # Before the next, which would take it for a part of the id.
            Route(ONE_PROGRAM + "/why", self.why),
            Route(ONE_PROGRAM, self.program),
        ]

    async def list_programs(self, request: Request) -> Response:
        """List programs, those with open calls first: the tenant's own, or all for an admin."""
        query = ListQuery.from_parameters(request.query_params)
        viewer = self._tenants.of(request.scope)
        views = await self._views(query, viewer)
        situation, now = self._overview.situation(), self._overview.now()
        chosen = [
            show_program(view, situation, self._scheduler, viewer, now)
            for view in views
            if query.state is None or situation.program_state(view) is query.state
        ]
        return _json({"programs": chosen[: query.limit], "has_more": len(chosen) > query.limit})

    async def program(self, request: Request) -> Response:
        """Show one program with its calls."""
        viewer = self._tenants.of(request.scope)
        view = await self._find(request, viewer)
        situation, now = self._overview.situation(), self._overview.now()
        shown = show_program(view, situation, self._scheduler, viewer, now)
        calls = show_calls(view, situation, now)
        return _json({**shown, "longest_chain_s": critical_path_s(view.calls), "calls": calls})

    async def why(self, request: Request) -> Response:
        """Explain the state of one program."""
        viewer = self._tenants.of(request.scope)
        view = await self._find(request, viewer)
        situation, now = self._overview.situation(), self._overview.now()
        return _json(explain_program(view, situation, self._scheduler, viewer, now))

    async def _views(self, query: ListQuery, viewer: Tenant) -> list[ProgramView]:
        prefix, limit = viewer.visible_prefix, query.limit + 1
        if query.state is None:
            return await self._store.programs(prefix=prefix, limit=limit)
        if query.state is ProgramState.IDLE:
            return await self._store.programs(prefix=prefix, is_active=False, limit=limit)
        # Which of these an active program is in shows only when it is looked at.
        return await self._store.programs(prefix=prefix, is_active=True)

    async def _find(self, request: Request, viewer: Tenant) -> ProgramView:
        program_id = request.path_params["program_id"]
        for scoped_id in viewer.candidates(program_id):
            view = await self._store.program(scoped_id)
            if view is not None:
                return view
        raise NotFoundError(f"there is no program {program_id!r}", param="program_id")


def _json(content: object) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json")
