"""What limits say of a single request: how many messages it may hold, and how many tokens it may ask for."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from autellix_backend.gateway.calls.body import CallBody
from autellix_backend.gateway.calls.dialects import Dialect
from autellix_backend.gateway.errors import InvalidRequestError
from autellix_backend.settings import TenantLimits

OUTPUT_FIELDS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
"""Every name of the bound: engines also take the older one, and some another dialect's."""

_list_decoder = msgspec.json.Decoder(list[msgspec.Raw])


def bounded(body: CallBody, limits: TenantLimits, dialect: Dialect) -> CallBody:
    """Return a body that keeps the limits; one that does not say how many tokens it wants gets the limit.

    Raises:
        InvalidRequestError: naming the field that asks for too much.
    """
    if limits.max_messages is not None and dialect.messages_field is not None:
        _check_messages(body, dialect.messages_field, limits.max_messages)
    if limits.max_output_tokens is None or dialect.output_field is None:
        return body
    _check_output(body, limits.max_output_tokens)
    if any(_number(body, name) is not None for name in OUTPUT_FIELDS):
        return body
    limit = msgspec.Raw(str(limits.max_output_tokens).encode())
    return replace(body, fields={**body.fields, dialect.output_field: limit})


def _check_messages(body: CallBody, name: str, limit: int) -> None:
    raw = body.fields.get(name)
    if raw is None or memoryview(raw)[:1].tobytes() != b"[":
        return
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
