"""Parameters of endpoints: the gateway's parts, the request's tenant, and who may do what."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends
from starlette.requests import Request

from autellix_backend.gateway.errors import AdminOnlyError, NotFoundError
from autellix_backend.gateway.http.guard import is_loopback, names_this_machine
from autellix_backend.gateway.requests import client_of
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_backend.gateway.wiring import Gateway


async def _parts(request: Request) -> Gateway:
    parts: Gateway = request.app.state.gateway
    return parts


Parts = Annotated[Gateway, Depends(_parts)]
"""The gateway's parts."""


async def _viewer(parts: Parts, request: Request) -> Tenant:
    return parts.tenants.of(request.scope)


Viewer = Annotated[Tenant, Depends(_viewer)]
"""The tenant of the request."""


def is_on_this_machine(request: Request) -> bool:
    """Return whether a client is on the gateway's own machine."""
    # A rebound DNS name and clients behind a proxy on this machine send another `Host`.
    host = request.headers.get("host", "")
    is_local = not host or names_this_machine(host)
    return is_local and (request.client is None or is_loopback(request.client.host))


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
            if not parts.tenants.has_keys and not is_on_this_machine(request):
                raise AdminOnlyError(what, "a tenants file, or a client on the gateway's own machine")
        except AdminOnlyError:
            parts.audit.refusal(f"refused {what}", **who)
            raise
        parts.audit.act(f"{what}, {request.method}", **who)

    return Depends(check)
