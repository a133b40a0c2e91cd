"""Recent programs under other policies, by the laboratory's simulator in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import sys
import time
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query
from starlette.responses import Response

from autellix_backend.console.http.history import detail_of
from autellix_backend.console.http.parameters import ConsoleParts
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.gateway.errors import ConflictError
from autellix_backend.gateway.http.bodies import JSON_TYPE
from autellix_backend.gateway.http.engines import list_engines
from autellix_backend.gateway.http.parameters import InForce, Pool, Viewer, operator_only
from autellix_backend.gateway.http.refusals import refusals
from autellix_backend.install import pip_install
from autellix_backend.settings import settings_to_mapping
from autellix_wire.paths import API_PREFIX

REPLAY_PATH = API_PREFIX + "/replay"
SIMULATOR = "autellix_lab.cli.replay_recent"
"""A program and no import: the product works without the laboratory."""
TIMEOUT_S = 120.0
MAX_CALLS = 20_000
"""Calls of the programs that are simulated, the last ones to end."""
POLICIES = tuple(dict.fromkeys(("fcfs", "plas", SchedulerConfig().policy)))

router = APIRouter(tags=["operators"], responses=refusals(401, 403, 500))


@router.post(
    REPLAY_PATH, dependencies=[operator_only("the replay of recent programs")], responses=refusals(400, 409)
)
async def replay_recent(
    viewer: Viewer,
    pool: Pool,
    settings: InForce,
    console: ConsoleParts,
    minutes: Annotated[int, Query(ge=1, le=60)] = 10,
) -> Response:
    """Simulate the programs that ended in the last minutes under other policies; one at a time."""
    if importlib.util.find_spec(SIMULATOR.partition(".")[0]) is None:
        raise ConflictError(f"the simulator is not installed here; run {pip_install('lab')}")
    if console.replaying.locked():
        raise ConflictError("another replay is running; try again when it has ended")
    async with console.replaying:
        since_s = time.time() - 60.0 * minutes
        programs = []
        calls = 0
        for program in console.history.programs(viewer.visible_prefix):
            calls += len(program.calls)
            if program.ended_at_s < since_s or calls > MAX_CALLS:
                break
            programs.append(program)
        if not programs:
            raise ConflictError(f"no program has ended in the last {minutes} minutes")
        policy = settings.scheduler.policy
        found = {
            "engines": (await list_engines(pool)).engines,
            "scheduler": settings_to_mapping(settings)["scheduler"],
            "policies": [each for each in POLICIES if each != policy],
        }

        def document() -> bytes:
            return msgspec.json.encode(found | {"programs": [detail_of(each, viewer) for each in programs]})

        # In a thread: thousands of calls would delay those of other programs.
        return Response(await _simulate(await asyncio.to_thread(document)), media_type=JSON_TYPE)


async def _simulate(document: bytes) -> bytes:
    """Return the simulator's answer.

    Raises:
        ConflictError: if it fails or takes too long.
    """
    pipe: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), asyncio.subprocess.PIPE)
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", SIMULATOR, **pipe)
    try:
        answer, problem = await asyncio.wait_for(process.communicate(document), TIMEOUT_S)
    except TimeoutError as error:
        raise ConflictError(
            f"the simulation took more than {TIMEOUT_S:.0f} s; replay fewer minutes"
        ) from error
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    if process.returncode:
        lines = problem.decode(errors="replace").strip().splitlines() or ["it gave no reason"]
        raise ConflictError(f"the simulator failed: {lines[-1]}")
    return answer
