"""Open calls for tests, with defaults for what a test does not care about."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from autellix_backend.gateway.calls.body import parse_body
from autellix_backend.gateway.calls.call import GatewayCall
from autellix_backend.gateway.calls.dialects import CHAT_COMPLETIONS
from autellix_backend.gateway.engines.handle import EngineHandle
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_backend.identity.identity import read_identity
from autellix_backend.stores.base import Inherited


def arrived_call(headers: dict[str, str], *, body: bytes = b"{}", engine: str = "fake-0") -> GatewayCall:
    """Return a chat that an engine is chosen for, with the id `c` unless a header names it."""
    call = GatewayCall(
        dialect=CHAT_COMPLETIONS,
        tenant=Tenant(),
        identity=read_identity(headers, {}, "c"),
        headers=headers,
        body=parse_body(body, CHAT_COMPLETIONS),
    )
    call.handle = cast("EngineHandle", SimpleNamespace(name=engine))
    return call


def open_call(
    headers: dict[str, str], *, key: str, body: bytes = b"{}", engine: str = "fake-0", **fields: Any
) -> GatewayCall:
    """Return a chat that has begun, with the id `c` unless a header names it."""
    call = arrived_call(headers, body=body, engine=engine)
    inherited = fields.pop("inherited", None) or Inherited(service_s=0.0, program_service_s=0.0, wait_s=0.0)
    call.begin(call.make_start(key), inherited, 1.0)
    for name, value in fields.items():
        setattr(call, name, value)
    return call
