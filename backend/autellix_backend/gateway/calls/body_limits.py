"""A tenant's limits on a single request: its number of messages and its output tokens."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from autellix_backend.gateway.calls.body import CallBody
from autellix_backend.gateway.calls.dialects import Dialect
from autellix_backend.gateway.errors import InvalidRequestError
from autellix_backend.settings import TenantLimits

OUTPUT_FIELDS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
"""Every name of the bound: engines accept the older one too, and some accept another dialect's."""

_list_decoder = msgspec.json.Decoder(list[msgspec.Raw])


def bounded(body: CallBody, limits: TenantLimits, dialect: Dialect) -> CallBody:
    """Return the body within the limits; one without a bound on its output tokens gets the limit.

    Raises:
        InvalidRequestError: if a field asks for more than a limit allows.
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
    """Return a number in the body, None if it is absent or invalid; the engine refuses invalid values."""
    raw = body.fields.get(name)
    value = None if raw is None else msgspec.json.decode(raw)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
