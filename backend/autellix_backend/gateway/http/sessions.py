"""The sessions API: a client opens a session, keeps it alive, and ends it or one of its programs."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from autellix_backend.gateway.errors import InvalidRequestError, NotFoundError
from autellix_backend.gateway.http.requests import ClientGoneError, read_body, read_headers
from autellix_backend.gateway.http.watches import Watches
from autellix_backend.gateway.identity.session_tokens import SessionTokens
from autellix_backend.gateway.tenancy.tenants import Tenants
from autellix_backend.settings import GatewaySettings
from autellix_backend.stores.base import ProgramStore
from autellix_wire import PROGRAMS_PATH, SESSIONS_PATH, InvalidIdError, check_id
from autellix_wire.sessions import InvalidBodyError, SessionStart, SessionStarted

LOST_HEARTBEATS = 3
"""Heartbeats that a client may miss before its session ends."""
WATCHED_HEARTBEATS = 1.25
"""Heartbeats after which the session of a client ends whose watch has ended: one more could have come."""


class SessionsApi:
    """The endpoints over one store."""

    def __init__(
        self,
        store: ProgramStore,
        clock: Callable[[], float],
        gateway: GatewaySettings,
        guard: SessionTokens,
        watches: Watches,
        tenants: Tenants,
    ) -> None:
        self._store = store
        self._clock = clock
        self._heartbeat_s = gateway.heartbeat_s
        self._max_body_bytes = gateway.max_body_bytes
        self._guard = guard
        self._watches = watches
        self._tenants = tenants
        self._version = importlib.metadata.version("autellix")

    def routes(self) -> list[Route]:
        """Return the routes of the endpoints."""
        one_session = SESSIONS_PATH + "/{session_id:path}"
        return [
            Route(SESSIONS_PATH, self.start, methods=["POST"]),
            Route(one_session + "/heartbeat", self.heartbeat, methods=["POST"]),
            Route(one_session + "/watch", self.watch, methods=["GET"]),
            Route(one_session, self.end, methods=["DELETE"]),
            Route(PROGRAMS_PATH + "/{program_id:path}", self.end_program, methods=["DELETE"]),
        ]

    async def start(self, request: Request) -> Response:
        """Start a session, or refresh the one of this id."""
        headers = read_headers(request.scope)
        try:
            start = SessionStart.from_bytes(await read_body(headers, request.receive, self._max_body_bytes))
        except ClientGoneError:
            return Response(status_code=204)
        except InvalidIdError as error:
            raise InvalidRequestError(str(error), param=error.field) from error
        except InvalidBodyError as error:
            raise InvalidRequestError(str(error)) from error
        scoped_id = self._tenants.of(request.scope).scoped(start.session_id)
        is_new = await self._store.open_session(scoped_id, self._clock())
        started = SessionStarted(
            session_id=start.session_id,
            heartbeat_s=self._heartbeat_s,
            version=self._version,
            token=self._guard.mint(scoped_id, is_new=is_new),
        )
        return Response(started.to_bytes(), 201 if is_new else 200, media_type="application/json")

    async def heartbeat(self, request: Request) -> Response:
        """Keep a session alive."""
        await self._beat(request)
        return Response(b"{}", media_type="application/json")

    async def watch(self, request: Request) -> Response:
        """Stay open as long as the client lives; its session ends soon after, unless a heartbeat follows."""
        scoped_id = await self._beat(request)
        if await self._watches.until_gone(request.receive):
            # As if its last heartbeat had come so long ago that little of its time is left.
            spent_s = (LOST_HEARTBEATS - WATCHED_HEARTBEATS) * self._heartbeat_s
            await self._store.heartbeat(scoped_id, self._clock() - spent_s)
        return Response(status_code=204)

    async def end(self, request: Request) -> Response:
        """End a session and its programs."""
        session_id = _path_id(request, "session_id")
        scoped_id = self._tenants.of(request.scope).scoped(session_id)
        if not await self._store.close_session(scoped_id, self._clock()):
            raise NotFoundError(f"there is no session {session_id!r}", param="session_id")
        return Response(status_code=204)

    async def end_program(self, request: Request) -> Response:
        """End a program."""
        program_id = _path_id(request, "program_id")
        for scoped_id in self._tenants.of(request.scope).candidates(program_id):
            if await self._store.end_program(scoped_id, self._clock()):
                return Response(status_code=204)
        raise NotFoundError(f"there is no program {program_id!r}", param="program_id")

    async def _beat(self, request: Request) -> str:
        """Refresh the session of a request; return its id in the store."""
        session_id = _path_id(request, "session_id")
        scoped_id = self._tenants.of(request.scope).scoped(session_id)
        if not await self._store.heartbeat(scoped_id, self._clock()):
            raise NotFoundError(f"there is no session {session_id!r}: start it again", param="session_id")
        return scoped_id


def _path_id(request: Request, name: str) -> str:
    try:
        return check_id(request.path_params[name], name)
    except InvalidIdError as error:
        raise InvalidRequestError(str(error), param=name) from error
