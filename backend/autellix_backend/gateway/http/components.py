"""Parameters of endpoints: components, the request's tenant, and how to find programs and open calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, Protocol

from fastapi import Depends
from starlette.requests import Request

from autellix_backend.gateway.calls.router import Router
from autellix_backend.gateway.engines.pool import EnginePool
from autellix_backend.gateway.errors import AdminOnlyError, NotFoundError
from autellix_backend.gateway.explain.event_feed import EventFeed
from autellix_backend.gateway.explain.overview import Overview, engine_view
from autellix_backend.gateway.history.history import PastProgram, ProgramHistory
from autellix_backend.gateway.http.fairness import AnswerTurns
from autellix_backend.gateway.http.guard import is_loopback, names_this_machine
from autellix_backend.gateway.identity.session_tokens import SessionTokens
from autellix_backend.gateway.requests import read_headers
from autellix_backend.gateway.tenancy.open_sessions import OpenSessions
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_backend.observe.metrics import GatewayMetrics
from autellix_backend.pauses import Pauses
from autellix_backend.settings import Settings
from autellix_backend.stores.base import ProgramStore, ProgramView


class Owned(Protocol):
    """A program, living or ended."""

    @property
    def owner(self) -> str | None:
        """Who started its session; None without one."""


def _component(name: str) -> Any:
    async def read(request: Request) -> Any:
        return getattr(request.app.state.components, name)

    return Depends(read)


async def _overview(request: Request) -> Overview:
    components = request.app.state.components
    engines = {handle.name: engine_view(handle) for handle in components.pool}
    return Overview(components.registry, engines, components.clock())


async def _viewer(request: Request) -> Tenant:
    tenant: Tenant = request.app.state.components.tenants.of(request.scope)
    return tenant


async def _is_shown(request: Request) -> Callable[[Owned], bool]:
    components = request.app.state.components
    if not _is_guarded(request):
        return lambda _view: True
    owner = await components.tokens.prove(read_headers(request.scope), components.tenants.of(request.scope))
    return lambda view: view.owner == owner


def _is_guarded(request: Request) -> bool:
    """Return whether a client sees its own programs only, though all clients are one tenant."""
    components = request.app.state.components
    is_open = not components.tokens.is_strict or components.tenants.has_keys
    return not is_open and not _is_on_this_machine(request)


def _is_on_this_machine(request: Request) -> bool:
    # A rebound DNS name and clients behind a proxy on this machine send another `Host`.
    host = request.headers.get("host", "")
    is_local = not host or names_this_machine(host)
    return is_local and (request.client is None or is_loopback(request.client.host))


Closing = Annotated[asyncio.Event, _component("closing")]
"""Set when the server ends."""
Clock = Annotated[Callable[[], float], _component("clock")]
Feed = Annotated[EventFeed, _component("feed")]
History = Annotated[ProgramHistory, _component("history")]
Metrics = Annotated[GatewayMetrics, _component("metrics")]
Pool = Annotated[EnginePool, _component("pool")]
Routes = Annotated[Router, _component("router")]
Sessions = Annotated[OpenSessions, _component("sessions")]
SettingsTree = Annotated[Settings, _component("settings")]
Store = Annotated[ProgramStore, _component("store")]
Tokens = Annotated[SessionTokens, _component("tokens")]
CurrentOverview = Annotated[Overview, Depends(_overview)]
"""The open calls and engines at the moment; an endpoint that waits for a turn names it after the turn."""
IsShown = Annotated[Callable[[Owned], bool], Depends(_is_shown)]
"""Whether the caller may see a program of its tenant.

Where identity is strict and there are no keys, only its owner and clients on the gateway's machine may.
"""
Viewer = Annotated[Tenant, Depends(_viewer)]
"""The tenant of the request."""


async def _take_turn(
    viewer: Viewer, turns: Annotated[AnswerTurns, _component("turns")], request: Request
) -> AsyncIterator[Pauses]:
    async with turns.turn(viewer, request) as pauses:
        yield pauses


async def _living(program_id: str, viewer: Viewer, store: Store, is_shown: IsShown) -> ProgramView | None:
    for scoped_id in viewer.candidates(program_id):
        view = await store.program(scoped_id)
        if view is not None and is_shown(view):
            return view
    return None


async def _ended(program_id: str, viewer: Viewer, history: History, is_shown: IsShown) -> PastProgram | None:
    found = map(history.find, viewer.candidates(program_id))
    return next((program for program in found if program is not None and is_shown(program)), None)


Turn = Annotated[Pauses, Depends(_take_turn, scope="function")]
"""The tenant's turn for a long answer, until it is made; the parameters that follow are read in it."""
Living = Annotated[ProgramView | None, Depends(_living)]
"""The program in the process table; None if the viewer may see none of this id."""
Ended = Annotated[PastProgram | None, Depends(_ended)]
"""The last program of the id that has ended; None if the viewer may see none."""


def unknown_program(program_id: str) -> NotFoundError:
    """Return the error of a program that does not exist, or that the viewer may not see."""
    return NotFoundError(f"there is no program {program_id!r}", param="program_id")


def admin_only(what: str) -> Any:
    """Return a dependency that refuses tenants that are not admins."""

    async def check(viewer: Viewer) -> None:
        viewer.check_admin(what)

    return Depends(check)


def operator_only(what: str) -> Any:
    """Return a dependency that lets only operators change the gateway.

    An operator has an admin's key; without tenants, a client on the gateway's own machine.
    """

    async def check(viewer: Viewer, request: Request) -> None:
        viewer.check_admin(what)
        has_keys = request.app.state.components.tenants.has_keys
        if not has_keys and not _is_on_this_machine(request):
            raise AdminOnlyError(what, "a tenants file, or a client on the gateway's own machine")

    return Depends(check)


def feed_only_to_owners() -> Any:
    """Return a dependency that refuses the feed to clients that may see their own programs only."""

    async def check(request: Request) -> None:
        if _is_guarded(request):
            raise AdminOnlyError("events", "a tenants file, or a client on the gateway's own machine")

    return Depends(check)
