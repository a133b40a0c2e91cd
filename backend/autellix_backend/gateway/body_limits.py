"""What limits say of a single request: how many messages it may hold, and how many tokens it may ask for."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from autellix_backend.gateway.body import CallBody
from autellix_backend.gateway.errors import InvalidRequestError
from autellix_backend.settings import TenantLimits

MESSAGE_FIELDS = ("messages", "input")
OUTPUT_FIELDS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
DEFAULT_OUTPUT_FIELD = "max_tokens"
OUTPUT_FIELD_OF = {
    "/v1/chat/completions": "max_completion_tokens",
    "/v1/responses": "max_output_tokens",
}
"""What a path calls the bound of its output; the others say max_tokens."""

_list_decoder = msgspec.json.Decoder(list[msgspec.Raw])


def bounded(body: CallBody, limits: TenantLimits, path: str) -> CallBody:
    """Return a body that keeps the limits; one that does not say how many tokens it wants gets the limit.

    Raises:
        InvalidRequestError: naming the field that asks for too much.
    """
    if limits.max_messages is not None:
        _check_messages(body, limits.max_messages)
    if limits.max_output_tokens is None:
        return body
    _check_output(body, limits.max_output_tokens)
    if any(_number(body, name) is not None for name in OUTPUT_FIELDS):
        return body
    field_name = OUTPUT_FIELD_OF.get(path, DEFAULT_OUTPUT_FIELD)
    limit = msgspec.Raw(str(limits.max_output_tokens).encode())
    return replace(body, fields={**body.fields, field_name: limit})


def _check_messages(body: CallBody, limit: int) -> None:
    for name in MESSAGE_FIELDS:
        raw = body.fields.get(name)
        if raw is None or memoryview(raw)[:1].tobytes() != b"[":
            continue
        count = len(_list_decoder.decode(raw))
        if count > limit:
            problem = f"{name} holds {count} items; expected {limit} at most (limits.max_messages)"
            raise InvalidRequestError(problem, param=name)


def _check_output(body: CallBody, limit: int) -> None:
    for name in OUTPUT_FIELDS:
        wanted = _number(body, name)
        if wanted is not None and wanted > limit:
            problem = f"{name} is {wanted:g}; expected {limit} at most (limits.max_output_tokens)"
            raise InvalidRequestError(problem, param=name)


def _number(body: CallBody, name: str) -> float | None:
    """Return a number of the body; what is none is the engine's to refuse."""
    raw = body.fields.get(name)
    value = None if raw is None else msgspec.json.decode(raw)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
