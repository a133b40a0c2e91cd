"""Parameters of endpoints: the gateway's parts, the request's tenant, and who may do what."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends
from starlette.requests import Request

from autellix_backend.gateway.calls.router import Router
from autellix_backend.gateway.engines.models import ModelLists
from autellix_backend.gateway.engines.pool import EnginePool
from autellix_backend.gateway.errors import AdminOnlyError, NotFoundError
from autellix_backend.gateway.http.guard import is_loopback, names_this_machine
from autellix_backend.gateway.requests import client_of
from autellix_backend.gateway.sessions.session_tokens import SessionTokens
from autellix_backend.gateway.tenancy.open_sessions import OpenSessions
from autellix_backend.gateway.tenancy.tenants import Tenant, Tenants
from autellix_backend.observe.call_log import CallLog
from autellix_backend.observe.metrics import GatewayMetrics
from autellix_backend.observe.operator_log import AuditLog
from autellix_backend.settings import Settings
from autellix_backend.stores.base import ProgramStore


def _part(name: str) -> Any:
    """Return a dependency on one part of the gateway."""

    async def find(request: Request) -> Any:
        return getattr(request.app.state.gateway, name)

    return Depends(find)


# Each endpoint takes the parts that it uses.
Audit = Annotated[AuditLog, _part("audit")]
Clock = Annotated[Callable[[], float], _part("clock")]
Closing = Annotated[asyncio.Event, _part("closing")]
InForce = Annotated[Settings, _part("settings")]
Log = Annotated[CallLog | None, _part("call_log")]
Measured = Annotated[GatewayMetrics, _part("metrics")]
Models = Annotated[ModelLists, _part("models")]
Pool = Annotated[EnginePool, _part("pool")]
Routing = Annotated[Router, _part("router")]
Sessions = Annotated[OpenSessions, _part("sessions")]
Store = Annotated[ProgramStore, _part("store")]
Tenancy = Annotated[Tenants, _part("tenants")]
Tokens = Annotated[SessionTokens, _part("tokens")]


async def _viewer(tenants: Tenancy, request: Request) -> Tenant:
    return tenants.of(request.scope)


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

    async def check(viewer: Viewer, tenants: Tenancy, audit: Audit, request: Request) -> None:
        who = {"path": request.url.path, "tenant": viewer.name, **client_of(request.scope)}
        try:
            viewer.check_admin(what)
            if not tenants.has_keys and not is_on_this_machine(request):
                raise AdminOnlyError(what, "a tenants file, or a client on the gateway's own machine")
        except AdminOnlyError:
            audit.refusal(f"refused {what}", **who)
            raise
        audit.act(f"{what}, {request.method}", **who)

    return Depends(check)
