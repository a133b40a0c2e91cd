"""Open calls for tests, with defaults for what a test does not care about."""

from __future__ import annotations

from typing import Any

from autellix_backend.gateway.calls.body import parse_body
from autellix_backend.gateway.calls.dialects import CHAT_COMPLETIONS
from autellix_backend.gateway.calls.open_call import CallRequest, OpenCall
from autellix_backend.gateway.identity.identity import read_identity
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_backend.stores.base import Inherited


def open_call(headers: dict[str, str], *, key: str, body: bytes = b"{}", **fields: Any) -> OpenCall:
    """Return a chat that has begun, with the id `c` unless a header names it."""
    request = CallRequest(
        dialect=CHAT_COMPLETIONS,
        tenant=Tenant(),
        identity=read_identity(headers, {}, "c"),
        headers=headers,
        body=parse_body(body, CHAT_COMPLETIONS),
    )
    inherited = fields.pop("inherited", None) or Inherited(service_s=0.0, program_service_s=0.0, wait_s=0.0)
    defaults: dict[str, Any] = {
        "began_s": 1.0,
        "level": 1,
        "entry_service_s": 0.0,
        "engine": "fake-0",
        "engine_key": key,
        "arrival": request.arrival(key, inherited),
    }
    return OpenCall(request=request, start=request.start(key), inherited=inherited, **{**defaults, **fields})
