"""A call's request to an engine: the client's, without privileged fields, plus the gateway's own arguments.

Engines take privileged fields beside OpenAI's: a priority, a rank, another server's cache. A client must not
bypass the scheduler or its tenant with them, so they are dropped. Everything else is passed on unchanged,
except that hosted APIs, which refuse unknown fields, do not get the names of programs, and that a tenant's
tools may be sorted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.hints import NO_HINTS
from autellix_backend.core.policies import make_policy
from autellix_backend.engines.base import EngineKind
from autellix_backend.gateway.calls.body import CallBody
from autellix_backend.gateway.calls.call import GatewayCall
from autellix_backend.gateway.calls.sorted_tools import sorted_tools
from autellix_backend.gateway.engines.upstream import REQUEST_ID_HEADER, request_headers
from autellix_backend.identity.aliases import ALIASES
from autellix_backend.identity.classes import ProgramClasses
from autellix_backend.identity.fields import XARGS
from autellix_backend.raw_json import MAX_SCALAR_BYTES, decoded_or
from autellix_backend.reports.call_arguments import Arguments, CallIdentity, call_arguments
from autellix_backend.reports.request_ids import marked_id
from autellix_wire import engine_args

SESSION_HEADERS = ("x-session-id", "x-llm-d-inference-fairness-id", "x-dynamo-session-id")
"""The headers of a session or flow that vLLM, llm-d and Dynamo read; it is the program here."""
SESSION_FIELD = "session_id"
SALT_FIELD = "cache_salt"
TOOLS_FIELD = "tools"
SALT_CHARACTERS = 32

PRIVILEGED_FIELDS = frozenset(
    {
        "priority",
        # Ids inside the engine, also of stored answers: another client could use the same.
        "request_id",
        "rid",
        # The server whose cache is used, or the rank
        "kv_transfer_params",
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "data_parallel_rank",
        "routed_dp_rank",
        "disagg_prefill_dp_rank",
        # The gateway sets the session to the program under its tenant.
        SESSION_FIELD,
    }
)
MODEL_FIELDS = frozenset({"fallbacks", "lora_path", "models"})
"""Further models that LiteLLM, SGLang and OpenRouter may answer with; not for tenants with `models`."""
SHARED_FIELDS = frozenset({"agent_hint", "nvext", "session_params"})
"""Sessions of the engine, which all its clients share, and priorities among all; not for tenants."""
PRIVILEGED_ARGS = frozenset({"kv_transfer_params", SESSION_FIELD, "agentic_context"})
"""The last one is for routers: vLLM takes no object there."""

_OPENAI_FIELDS = frozenset({"client_metadata", "conversation", "metadata", "prompt_cache_key"})
IDENTITY_FIELDS = frozenset(alias.path[0] for alias in ALIASES if alias.path) - _OPENAI_FIELDS
"""Fields that name programs and are not OpenAI's, `vllm_xargs` among them."""

_DROPPED = {
    EngineKind.VLLM: PRIVILEGED_FIELDS,
    EngineKind.SGLANG: PRIVILEGED_FIELDS,
    EngineKind.OPENAI: PRIVILEGED_FIELDS | IDENTITY_FIELDS,
}

_salt_decoder = msgspec.json.Decoder(str)


class EngineArguments:
    """What an engine's scheduler learns of a call, in `vllm_xargs`: only what its settings let it read."""

    def __init__(
        self,
        scheduler: SchedulerConfig,
        classes: ProgramClasses,
        gateway_id: str,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._has_boost = make_policy(scheduler.policy).boosts
        self._has_classes = self._has_boost or scheduler.admission != "none"
        self._classes = classes
        self._gateway_id = gateway_id
        self._clock = clock

    def of(self, call: GatewayCall, ended: Sequence[str]) -> Arguments:
        """Return the arguments of a call.

        Args:
            call: The call.
            ended: Programs that the engine knows and that have ended.
        """
        arrival, has_boost = call.arrival, self._has_boost
        if not has_boost:
            hints = arrival.hints if self._has_classes else NO_HINTS
            arrival = replace(arrival, age_s=None, work=None, hints=hints)
        args = call_arguments(
            CallIdentity(
                call_id=call.engine_key,
                arrival=arrival,
                is_last=call.is_last,
                spread=self._classes.spread(call.request.tenant.name) if has_boost else None,
                ended=tuple(ended) if self._has_classes else (),
                gateway=self._gateway_id,
            )
        )
        if has_boost:
            # It has waited since it arrived.
            args[engine_args.AGE_S] = call.inherited.age_s + self._clock() - call.began_s
        return args


def engine_request(call: GatewayCall, kind: EngineKind, args: Arguments) -> tuple[dict[str, str], bytes]:
    """Return the headers and the body of a call for an engine of a kind.

    Args:
        call: The call.
        kind: The kind of the engine.
        args: What its scheduler learns of the call; empty for an engine that reads none.
    """
    request = call.request
    dropped = MODEL_FIELDS if request.tenant.models else frozenset[str]()
    tenant = request.tenant
    content = engine_body(
        request.body, kind, args, tenant=tenant.name, dropped=dropped, sorts_tools=tenant.sorts_tools
    )
    headers = engine_headers(request.headers, kind, request.identity.program)
    if request.body.is_beam_search and args and kind is EngineKind.VLLM:
        headers[REQUEST_ID_HEADER] = call.marked_id = marked_id(args)
    return headers, content


def engine_headers(headers: Mapping[str, str], kind: EngineKind, program: str) -> dict[str, str]:
    """Return the headers for an engine, with the program as vLLM's session.

    Names are in lower case.
    """
    picked = request_headers(headers)
    if kind is EngineKind.VLLM:
        picked |= dict.fromkeys(SESSION_HEADERS, program)
    return picked


def engine_body(
    body: CallBody,
    kind: EngineKind,
    args: Arguments,
    *,
    tenant: str = "",
    dropped: frozenset[str] = frozenset(),
    sorts_tools: bool = False,
) -> bytes:
    """Return the body for an engine of a kind; `args` are for the scheduler of a vLLM engine.

    A salt keeps the tenant's prefix cache apart; without a tenant the client's own salt stays. `dropped` are
    further fields that the tenant may not send. `sorts_tools` is as in `Tenant`.
    """
    dropped |= _DROPPED[kind] | (SHARED_FIELDS if tenant else frozenset())
    fields: dict[str, Any] = {name: raw for name, raw in body.fields.items() if name not in dropped}
    fields.pop(XARGS, None)
    if sorts_tools and TOOLS_FIELD in fields:
        fields[TOOLS_FIELD] = sorted_tools(fields[TOOLS_FIELD])
    if kind is EngineKind.VLLM and (xargs := {**_allowed_args(body.xargs), **args}):
        fields[XARGS] = xargs
    if tenant and kind is not EngineKind.OPENAI:
        fields[SALT_FIELD] = _tenant_salt(tenant, body.fields.get(SALT_FIELD))
    return msgspec.json.encode(fields)


def _allowed_args(xargs: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
    return {
        name: value
        for name, value in xargs.items()
        if name not in PRIVILEGED_ARGS and not name.startswith(engine_args.PREFIX)
    }


def _tenant_salt(tenant: str, own: msgspec.Raw | None) -> str:
    """Bind the client's own salt to the tenant; hashed, because vLLM allows 128 characters and no slash."""
    # Engines refuse or ignore a salt that is not text; it must not replace the tenant's.
    salt = decoded_or("", _salt_decoder, own, MAX_SCALAR_BYTES)
    # No tenant's name holds a slash, so different pairs never give the same text.
    return hashlib.sha256(f"{tenant}/{salt}".encode()).hexdigest()[:SALT_CHARACTERS]
