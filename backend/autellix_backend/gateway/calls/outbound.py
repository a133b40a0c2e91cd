"""What leaves towards an engine: the client's body and headers, less what only we may say, plus what we say.

Engines take orders in fields beside OpenAI's: a place in the queue, a rank, another server's cache. Clients
must not give such orders past the scheduler and the tenants, so these fields are dropped. Everything else
goes on as it came; only the names of programs stay behind where the engine is a hosted API, which refuses
fields that it does not know.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from autellix_backend.engines.kind import EngineKind
from autellix_backend.gateway.calls.body import XARGS, CallBody
from autellix_backend.gateway.engines.upstream import request_headers
from autellix_backend.gateway.identity.aliases import ALIASES

SESSION_HEADER = "x-session-id"
SESSION_FIELD = "session_id"
SALT_FIELD = "cache_salt"
SALT_CHARACTERS = 32

PRIVILEGED_FIELDS = frozenset(
    {
        "priority",
        # Names inside the engine, also of answers that it keeps: another client could have the same.
        "request_id",
        "rid",
        # Which server's cache, or which rank
        "kv_transfer_params",
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "data_parallel_rank",
        "routed_dp_rank",
        "disagg_prefill_dp_rank",
        # The session's name is ours to give: the program's, under its tenant.
        SESSION_FIELD,
    }
)
PRIVILEGED_ARGS = frozenset({"kv_transfer_params", SESSION_FIELD})
OWN_PREFIX = "autellix_"

_OPENAI_FIELDS = frozenset({"metadata", "prompt_cache_key"})
IDENTITY_FIELDS = frozenset(alias.path[0] for alias in ALIASES if alias.path) - _OPENAI_FIELDS
"""Fields that name programs and are none of OpenAI's, `vllm_xargs` among them."""

_DROPPED = {
    EngineKind.VLLM: PRIVILEGED_FIELDS,
    EngineKind.SGLANG: PRIVILEGED_FIELDS,
    EngineKind.OPENAI: PRIVILEGED_FIELDS | IDENTITY_FIELDS,
}

_salt_decoder = msgspec.json.Decoder(str)


def engine_body(
    body: CallBody, kind: EngineKind, args: Mapping[str, str | float], *, tenant: str = ""
) -> bytes:
    """Return the body for an engine.

    Args:
        body: The client's.
        kind: Whose fields the engine takes.
        args: What a vLLM engine is told, in its vllm_xargs.
        tenant: Whose prefix cache is kept apart by a salt; "" leaves the client's own salt alone.
    """
    dropped = _DROPPED[kind]
    fields: dict[str, Any] = {name: raw for name, raw in body.fields.items() if name not in dropped}
    fields.pop(XARGS, None)
    if kind is EngineKind.VLLM and (xargs := {**_allowed_args(body.xargs), **args}):
        fields[XARGS] = xargs
    if tenant and kind is not EngineKind.OPENAI:
        fields[SALT_FIELD] = _tenant_salt(tenant, body.fields.get(SALT_FIELD))
    return msgspec.json.encode(fields)


def engine_headers(
    headers: Mapping[str, str], kind: EngineKind, program: str, *, session_header: str | None = None
) -> dict[str, str]:
    """Return the headers for an engine, with the program: as vLLM's session, and under a name that is given.

    Names are in lower case.
    """
    picked = request_headers(headers)
    if session_header is not None:
        picked[session_header.lower()] = program
    if kind is EngineKind.VLLM:
        picked[SESSION_HEADER] = program
    return picked


def _allowed_args(xargs: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
    return {
        name: value
        for name, value in xargs.items()
        if name not in PRIVILEGED_ARGS and not name.startswith(OWN_PREFIX)
    }


def _tenant_salt(tenant: str, own: msgspec.Raw | None) -> str:
    """Bind the client's own salt to the tenant; hashed, because vLLM allows 128 characters and no slash."""
    try:
        salt = "" if own is None else _salt_decoder.decode(own)
    except msgspec.DecodeError:
        # Engines refuse or ignore what is no text; it must not take the tenant's place.
        salt = ""
    # No tenant's name holds a slash, so no two pairs are spelt alike.
    return hashlib.sha256(f"{tenant}/{salt}".encode()).hexdigest()[:SALT_CHARACTERS]
