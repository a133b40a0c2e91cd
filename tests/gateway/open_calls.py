"""Open calls for tests, with defaults for what a test does not care about."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from autellix_backend.gateway.calls.body import parse_body
from autellix_backend.gateway.calls.call import Assigned, GatewayCall, ReceivedCall
from autellix_backend.gateway.calls.dialects import CHAT_COMPLETIONS, Dialect
from autellix_backend.gateway.calls.registry import make_call, make_start
from autellix_backend.gateway.engines.handle import EngineHandle
from autellix_backend.gateway.engines.refusals import Caller
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_backend.identity.identity import read_identity
from autellix_backend.stores.base import Inherited

NEW = Inherited(service_s=0.0, program_service_s=0.0, wait_s=0.0)


def assigned_call(
    headers: dict[str, str],
    *,
    body: bytes = b"{}",
    engine: str = "fake-0",
    tenant: str = "",
    dialect: Dialect = CHAT_COMPLETIONS,
) -> Assigned:
    """Return a call that an engine is chosen for, with the id `c` unless a header names it."""
    identity, parsed = read_identity(headers, {}, "c"), parse_body(body, dialect)
    request = ReceivedCall(
        dialect=dialect,
        tenant=Tenant(name=tenant),
        identity=identity,
        headers=headers,
        body=parsed,
        caller=Caller(identity.program, tenant, parsed.model),
    )
    return Assigned(request=request, handle=cast("EngineHandle", SimpleNamespace(name=engine)))


def open_call(
    headers: dict[str, str], *, key: str, inherited: Inherited = NEW, now: float = 1.0, **fields: Any
) -> GatewayCall:
    """Return a chat that has begun; fields are those of its records, and of `assigned_call`."""
    given = {name: fields.pop(name) for name in ("body", "engine", "tenant", "dialect") if name in fields}
    assigned = assigned_call(headers, **given)
    call = make_call(assigned, make_start(assigned.request, key), inherited, now)
    for name, value in fields.items():
        records = (call, call.assigned, call.answer)
        setattr(next(each for each in records if name in each.__struct_fields__), name, value)
    return call
