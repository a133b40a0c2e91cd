"""Parameters of endpoints: the components, the request's tenant, and how to find programs and open calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, Protocol

from fastapi import Depends
from starlette.requests import Request

from autellix_backend.console.explain.overview import Overview, engine_view
from autellix_backend.console.history.history import PastProgram
from autellix_backend.gateway.errors import AdminOnlyError, NotFoundError
from autellix_backend.gateway.http.guard import is_loopback, names_this_machine
from autellix_backend.gateway.requests import client_of, read_headers
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_backend.gateway.wiring import Components
from autellix_backend.pauses import Pauses
from autellix_backend.stores.base import ProgramView


class Owned(Protocol):
    """A program, living or ended."""

    @property
    def owner(self) -> str | None:
        """Who started its session; None without one."""


async def _parts(request: Request) -> Components:
    parts: Components = request.app.state.components
    return parts


Parts = Annotated[Components, Depends(_parts)]
"""The gateway's components."""


async def _viewer(parts: Parts, request: Request) -> Tenant:
    return parts.tenants.of(request.scope)


Viewer = Annotated[Tenant, Depends(_viewer)]
"""The tenant of the request."""


def overview_of(parts: Components) -> Overview:
    """Return the open calls and engines at this moment."""
    engines = {handle.name: engine_view(handle) for handle in parts.pool}
    return Overview(parts.registry, engines, parts.clock(), parts.registry.gateway_id)


async def _overview(parts: Parts) -> Overview:
    return overview_of(parts)


CurrentOverview = Annotated[Overview, Depends(_overview)]
"""The open calls and engines at the moment; an endpoint that waits for a turn names it after the turn."""


async def _is_shown(parts: Parts, viewer: Viewer, request: Request) -> Callable[[Owned], bool]:
    if not _is_guarded(parts, request):
        return lambda _view: True
    owner = await parts.tokens.prove(read_headers(request.scope), viewer)
    return lambda view: view.owner == owner


def _is_guarded(parts: Components, request: Request) -> bool:
    """Return whether a client sees its own programs only, though all clients are one tenant."""
    is_open = not parts.tokens.is_strict or parts.tenants.has_keys
    return not is_open and not _is_on_this_machine(request)


def _is_on_this_machine(request: Request) -> bool:
    # A rebound DNS name and clients behind a proxy on this machine send another `Host`.
    host = request.headers.get("host", "")
    is_local = not host or names_this_machine(host)
    return is_local and (request.client is None or is_loopback(request.client.host))


IsShown = Annotated[Callable[[Owned], bool], Depends(_is_shown)]
"""Whether the caller may see a program of its tenant.

Where identity is strict and there are no keys, only its owner and clients on the gateway's machine may.
"""


async def _take_turn(viewer: Viewer, parts: Parts, request: Request) -> AsyncIterator[Pauses]:
    async with parts.turns.turn(viewer, request) as pauses:
        yield pauses


Turn = Annotated[Pauses, Depends(_take_turn, scope="function")]
"""The tenant's turn for a long answer, until it is made; the parameters that follow are read in it."""


async def _living(program_id: str, viewer: Viewer, parts: Parts, is_shown: IsShown) -> ProgramView | None:
    for scoped_id in viewer.candidates(program_id):
        view = await parts.store.program(scoped_id)
        if view is not None and is_shown(view):
            return view
    return None


Living = Annotated[ProgramView | None, Depends(_living)]
"""The program in the process table; None if the viewer may see none of this id."""


async def _ended(program_id: str, viewer: Viewer, parts: Parts, is_shown: IsShown) -> PastProgram | None:
    found = map(parts.history.find, viewer.candidates(program_id))
    return next((program for program in found if program is not None and is_shown(program)), None)


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

    async def check(viewer: Viewer, parts: Parts, request: Request) -> None:
        who = {"path": request.url.path, "tenant": viewer.name, **client_of(request.scope)}
        try:
            viewer.check_admin(what)
            if not parts.tenants.has_keys and not _is_on_this_machine(request):
                raise AdminOnlyError(what, "a tenants file, or a client on the gateway's own machine")
        except AdminOnlyError:
            parts.audit.refusal(f"refused {what}", **who)
            raise
        parts.audit.act(f"{what}, {request.method}", **who)

    return Depends(check)


async def feed_only_to_owners(parts: Parts, request: Request) -> None:
    """Refuse the feed to clients that may see their own programs only."""
    if _is_guarded(parts, request):
        raise AdminOnlyError("events", "a tenants file, or a client on the gateway's own machine")
