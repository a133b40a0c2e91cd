"""The sessions API: a client starts a session, keeps it alive, and ends it or one of its programs."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from autellix_backend.gateway.errors import NotFoundError, SessionTakenError
from autellix_backend.gateway.http.bodies import BodyRoute, Id
from autellix_backend.gateway.http.parameters import (
    Clock,
    Closing,
    Sessions,
    Store,
    Tokens,
    Viewer,
    unknown_program,
)
from autellix_backend.gateway.http.refusals import refusals
from autellix_backend.gateway.requests import read_headers, run_while_connected
from autellix_backend.gateway.sessions.running_sessions import HEARTBEAT_S, LOST_HEARTBEATS
from autellix_backend.identity.aliases import usable_id
from autellix_backend.stores.base import NotOwnerError, ProgramStore
from autellix_wire.paths import PROGRAMS_PATH, SESSIONS_PATH
from autellix_wire.sessions import SERVER, SessionStart, SessionStarted

VERSION = importlib.metadata.version("autellix")
WATCHED_HEARTBEATS = 1.25
"""A session ends after this many heartbeats once its watch has ended, unless another heartbeat arrives."""
RELEASE_PATH = "/programs/release"
"""Where ThunderAgent's clients end their programs."""
ONE_SESSION = SESSIONS_PATH + "/{session_id:path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartBody(SessionStart):
    """The body that starts a session."""

    session_id: Id


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAnswer(SessionStarted):
    """The answer to the start of a session."""

    server: str = SERVER


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseBody:
    """The body that ends a program of ThunderAgent's clients."""

    program_id: str | int
    """The program's id as in the bodies of its calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """The answer to it."""

    program_id: str
    released: bool
    """Whether there was such a program."""


router = APIRouter(
    tags=["sessions"],
    responses=refusals(400, 401, 500),
    route_class=BodyRoute,
    strict_content_type=False,
)


@router.post(
    SESSIONS_PATH,
    status_code=201,
    responses={200: {"model": StartAnswer}, **refusals(409, 413, 429)},
    response_model_exclude_none=True,
)
async def start_session(
    start: StartBody,
    viewer: Viewer,
    tokens: Tokens,
    sessions: Sessions,
    store: Store,
    clock: Clock,
    request: Request,
    response: Response,
) -> StartAnswer:
    """Start a session, or refresh the one of this id."""
    now, scoped_id = clock(), viewer.scoped(start.session_id)
    sessions.admit(viewer, scoped_id, now)
    owner = tokens.claim(scoped_id, read_headers(request.scope), start.proof)
    try:
        is_new = await store.open_session(scoped_id, now, owner if tokens.is_strict else None)
    except NotOwnerError as error:
        raise SessionTakenError(start.session_id) from error
    if is_new:
        tokens.running.note_start(scoped_id)
    response.status_code = 201 if is_new else 200
    return StartAnswer(
        session_id=start.session_id,
        heartbeat_s=HEARTBEAT_S,
        version=VERSION,
        token=tokens.mint(scoped_id, owner),
    )


async def _scoped(session_id: Id, viewer: Viewer, tokens: Tokens, request: Request) -> str:
    scoped_id = viewer.scoped(session_id)
    await tokens.check(scoped_id, read_headers(request.scope))
    return scoped_id


ScopedId = Annotated[str, Depends(_scoped)]
"""The backend's id of the session in the path, which the client has proved to be its own."""


@router.post(ONE_SESSION + "/heartbeat", responses=refusals(404))
async def heartbeat(
    session_id: Id, scoped_id: ScopedId, viewer: Viewer, sessions: Sessions, store: Store, clock: Clock
) -> dict[str, str]:
    """Keep a session alive."""
    await _refresh(session_id, scoped_id, store, clock)
    sessions.keep(viewer, scoped_id, clock())
    return {}


@router.get(ONE_SESSION + "/watch", status_code=204, responses=refusals(404))
async def watch(
    session_id: Id, scoped_id: ScopedId, closing: Closing, store: Store, clock: Clock, request: Request
) -> None:
    """Stay open as long as the client lives; its session ends soon after it, unless a heartbeat follows."""
    await _refresh(session_id, scoped_id, store, clock)
    await run_while_connected(closing.wait(), request.receive)
    if not closing.is_set():
        # Backdates its last heartbeat, so that little of its time is left.
        spent_s = (LOST_HEARTBEATS - WATCHED_HEARTBEATS) * HEARTBEAT_S
        await store.heartbeat(scoped_id, clock() - spent_s)


@router.delete(ONE_SESSION, status_code=204, responses=refusals(404))
async def end_session(
    session_id: Id,
    scoped_id: ScopedId,
    viewer: Viewer,
    tokens: Tokens,
    sessions: Sessions,
    store: Store,
    clock: Clock,
) -> None:
    """End a session and its programs."""
    tokens.running.note_end(scoped_id)
    sessions.end(viewer, scoped_id)
    if not await store.close_session(scoped_id, clock()):
        raise NotFoundError(f"there is no session {session_id!r}", param="session_id")


async def _ending(
    viewer: Viewer, tokens: Tokens, store: Store, clock: Clock, request: Request
) -> Callable[[str], Awaitable[bool]]:
    async def end(program_id: str) -> bool:
        owner = None
        if tokens.is_strict and not (viewer.is_admin and viewer.name):
            owner = await tokens.prove(read_headers(request.scope), viewer)
        for scoped_id in viewer.candidates(program_id):
            if owner is not None:
                view = await store.program(scoped_id)
                if view is not None and view.owner != owner:
                    break
            if await store.end_program(scoped_id, clock()):
                return True
        return False

    return end


End = Annotated[Callable[[str], Awaitable[bool]], Depends(_ending)]
"""Ends a program of the caller's, and returns False if there is none."""


@router.delete(PROGRAMS_PATH + "/{program_id:path}", status_code=204, responses=refusals(404))
async def end_program(program_id: Id, end: End) -> None:
    """End a program."""
    if not await end(program_id):
        raise unknown_program(program_id)


@router.post(RELEASE_PATH, responses=refusals(413))
async def release_program(release: ReleaseBody, end: End) -> Released:
    """End a program, as ThunderAgent's clients ask for it; one that is not there has ended."""
    program_id = usable_id(str(release.program_id)) or ""
    return Released(program_id=program_id, released=await end(program_id))


async def _refresh(session_id: str, scoped_id: str, store: ProgramStore, clock: Callable[[], float]) -> None:
    if not await store.heartbeat(scoped_id, clock()):
        raise NotFoundError(f"there is no session {session_id!r}: start it again", param="session_id")
