"""Program classes for operators: their sizes, and how well those are predicted."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from autellix_backend.core.classes import CheckpointError, ClassReport
from autellix_backend.gateway.classes import verdict
from autellix_backend.gateway.http.bodies import JSON_TYPE
from autellix_backend.gateway.http.components import Classes, Turns, Viewer
from autellix_backend.gateway.http.refusals import refusals
from autellix_wire.paths import API_PREFIX


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRow:
    """One class of a tenant's programs; work is in prompt tokens (see `core.boost`)."""

    name: str
    tenant: str
    ended: int
    median_work: float | None
    p90_work: float | None
    spread: float
    """Standard deviation of ln(work)."""
    errors: tuple[CheckpointError, ...]
    drifts: int
    is_drifting: bool
    verdict: str
    """Whether its sizes are predicted well, and if not, why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassTable:
    """The classes that the tenant may see."""

    classes: list[ClassRow]


router = APIRouter(tags=["operators"], responses=refusals(401, 500))


@router.get(API_PREFIX + "/classes", response_model=ClassTable)
async def list_classes(viewer: Viewer, classes: Classes, turns: Turns, request: Request) -> Response:
    """List the classes of programs: the tenant's own, or all for an admin."""
    async with turns.turn(viewer, request) as pauses:
        rows: list[ClassRow] = []
        for report in classes.reports(None if viewer.is_admin else viewer.name):
            rows.append(_row(report))
            await pauses.pause()
    return Response(msgspec.json.encode(ClassTable(classes=rows)), media_type=JSON_TYPE)


def _row(report: ClassReport) -> ClassRow:
    return ClassRow(
        name=report.key.name,
        tenant=report.key.tenant,
        ended=report.ended,
        median_work=report.median_work,
        p90_work=report.p90_work,
        spread=report.spread,
        errors=report.errors,
        drifts=report.drifts,
        is_drifting=report.is_drifting,
        verdict=verdict(report),
    )
