"""Programs for operators: the table, one program with its calls, and why it waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from autellix_backend.console.explain.explanations import ProgramExplanation
from autellix_backend.console.explain.overview import Overview
from autellix_backend.console.explain.views import (
    CallRow,
    ProgramRow,
    call_rows,
    critical_path_s,
    program_row,
)
from autellix_backend.console.explain.why import explain_program
from autellix_backend.console.http.history import EndedExplanation, explain_ended
from autellix_backend.console.http.parameters import (
    ConsoleParts,
    CurrentOverview,
    Ended,
    IsShown,
    Living,
    Turn,
)
from autellix_backend.console.wiring import Console
from autellix_backend.gateway.errors import InvalidRequestError
from autellix_backend.gateway.http.bodies import DEFAULT_LIMIT, Id, Limit, json_response
from autellix_backend.gateway.http.parameters import InForce, Routing, Store, Viewer, unknown_program
from autellix_backend.gateway.http.refusals import refusals
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_backend.observe.settled_call import SettledCall
from autellix_backend.observe.states import ProgramState
from autellix_backend.stores.base import ProgramView
from autellix_wire.paths import PROGRAMS_PATH

MAX_PAGES = 80
"""The most pages of the store for one answer, which may then be shorter than its limit and has a cursor."""
PAGE_PROGRAMS = 25
ONE_PROGRAM = PROGRAMS_PATH + "/{program_id:path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramTable:
    """Programs, those with open calls first."""

    programs: list[ProgramRow]
    has_more: bool
    next: str | None = None
    """Where the next answer begins (`after`); None at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramDetail(ProgramRow):
    """One program with its latest calls."""

    critical_path_s: float
    """Through the calls shown."""
    calls: tuple[CallRow, ...]


router = APIRouter(tags=["operators"], responses=refusals(401, 500))


@router.get(PROGRAMS_PATH, response_model=ProgramTable, responses=refusals(400))
async def list_programs(
    viewer: Viewer,
    store: Store,
    console: ConsoleParts,
    is_shown: IsShown,
    turn: Turn,
    overview: CurrentOverview,
    limit: Limit = DEFAULT_LIMIT,
    state: ProgramState | None = None,
    group: Annotated[Id | None, Query()] = None,
    after: str | None = None,
) -> Response:
    """List programs, or those of a group, first the ones with open calls: the caller's, for an admin all."""
    # The store does not know which of the other states an active program is in.
    is_active = None if state is None else state is not ProgramState.BETWEEN_CALLS
    rows: list[ProgramRow] = []
    cursor = after
    for _ in range(MAX_PAGES):
        most = min(limit - len(rows), PAGE_PROGRAMS)
        try:
            page = await store.page(
                prefix=viewer.visible_prefix, is_active=is_active, after=cursor, limit=most
            )
        except ValueError as error:
            raise InvalidRequestError(f"after: {error}", param="after") from error
        for view in page.programs:
            is_listed = is_shown(view) and (group is None or view.group == group)
            if is_listed and (state is None or overview.program_state(view) is state):
                rows.append(_row(view, overview, console, viewer))
            await turn.pause()
        cursor = page.cursor
        if cursor is None or len(rows) == limit:
            break
    return json_response(ProgramTable(programs=rows, has_more=cursor is not None, next=cursor))


# Before the next path, in which an id may hold slashes.
@router.get(ONE_PROGRAM + "/why", responses=refusals(404))
async def explain(
    program_id: str,
    viewer: Viewer,
    view: Living,
    ended: Ended,
    overview: CurrentOverview,
    router: Routing,
    settings: InForce,
    console: ConsoleParts,
) -> ProgramExplanation | EndedExplanation:
    """Explain why a program's calls wait or run, or where the time of one that has ended went."""
    if view is not None:
        placement = router.placement(view.program_id)
        config, settled = settings.scheduler, _settled(view, console)
        return explain_program(view, overview, config, viewer, placement, settled)
    if ended is not None:
        return explain_ended(ended, viewer)
    raise unknown_program(program_id)


@router.get(ONE_PROGRAM, responses=refusals(404))
async def show_program(
    program_id: str, viewer: Viewer, view: Living, overview: CurrentOverview, console: ConsoleParts
) -> ProgramDetail:
    """Show one program with its latest calls."""
    if view is None:
        raise unknown_program(program_id)
    return ProgramDetail(
        **asdict(_row(view, overview, console, viewer)),
        critical_path_s=critical_path_s(view.calls),
        calls=call_rows(view, overview),
    )


def _row(view: ProgramView, overview: Overview, console: Console, viewer: Tenant) -> ProgramRow:
    recorded = console.history.living(view.program_id)
    median_s = None if recorded is None else console.groups.median_s(recorded)
    return program_row(
        view, overview, console.gateway.settings.scheduler, viewer, _settled(view, console), median_s
    )


def _settled(view: ProgramView, console: Console) -> Sequence[SettledCall]:
    """Return a program's settled calls, as far as this gateway served them."""
    recorded = console.history.living(view.program_id)
    return () if recorded is None else recorded.calls
