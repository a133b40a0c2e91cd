"""The overview for operators: what programs wait for now, and the load of the last minutes or hours."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from autellix_backend.console.explain.current_load import CurrentLoad, current_load
from autellix_backend.console.explain.recent_load import KEPT_S, LoadSeries, PastWaits
from autellix_backend.console.http.parameters import ConsoleParts, CurrentOverview, Turn
from autellix_backend.gateway.http.bodies import json_response
from autellix_backend.gateway.http.parameters import Store, admin_only
from autellix_backend.gateway.http.refusals import refusals
from autellix_wire.paths import API_PREFIX

OVERVIEW_PATH = API_PREFIX + "/overview"
MAX_MINUTES = int(KEPT_S / 60)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOverview:
    """The load now and over time."""

    now: CurrentLoad
    waits: PastWaits
    load: LoadSeries


router = APIRouter(tags=["operators"], responses=refusals(401, 403, 500))


@router.get(
    OVERVIEW_PATH,
    response_model=LoadOverview,
    dependencies=[admin_only("the overview")],
    responses=refusals(400),
)
async def show_overview(
    _turn: Turn,
    overview: CurrentOverview,
    store: Store,
    console: ConsoleParts,
    minutes: Annotated[int, Query(ge=1, le=MAX_MINUTES)] = 15,
) -> Response:
    """Show what programs wait for now, and the load of the last minutes."""
    now = await current_load(store, overview)
    # A thread: six hours are thousands of samples.
    return await asyncio.to_thread(
        lambda: json_response(
            LoadOverview(now=now, waits=console.load.waits(), load=console.load.series(60.0 * minutes))
        )
    )
