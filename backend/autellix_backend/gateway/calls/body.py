"""A call's JSON body, of which the gateway decodes only what it needs.

The top level is split into raw slices; messages, tools and unknown fields are passed on byte by byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from autellix_backend.gateway.calls.dialects import Dialect
from autellix_backend.gateway.errors import InvalidRequestError
from autellix_backend.settings import TenantLimits

XARGS = "vllm_xargs"
OUTPUT_FIELDS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
"""Every name of the bound: engines accept the older one too, and some accept another dialect's."""
MAX_MODEL_CHARACTERS = 256

_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_xargs_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallBody:
    """A body split at its top level, and what the router, logs and traces read of it."""

    fields: dict[str, msgspec.Raw]
    xargs: dict[str, msgspec.Raw]
    size_bytes: int
    record_count: int
    """The engine requests that it becomes: one for each prompt and choice."""
    model: str | None
    is_streaming: bool


def parse_body(data: bytes, dialect: Dialect) -> CallBody:
    """Split a body; a model or a stream flag of the wrong type counts as absent.

    Raises:
        InvalidRequestError: if it or its vllm_xargs is not a JSON object.
    """
    try:
        fields = _fields_decoder.decode(data)
        model = _decoded(fields, "model")
        return CallBody(
            fields=fields,
            xargs=_xargs(fields),
            size_bytes=len(data),
            record_count=_record_count(fields, dialect),
            model=model[:MAX_MODEL_CHARACTERS] if isinstance(model, str) else None,
            is_streaming=_decoded(fields, "stream") is True,
        )
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequestError(f"the body is not a JSON object: {error}") from error


def bounded(body: CallBody, limits: TenantLimits, dialect: Dialect) -> CallBody:
    """Return the body within a tenant's limits; one without a bound on its output tokens gets the limit.

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


def _xargs(fields: Mapping[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    raw = fields.get(XARGS)
    if raw is None:
        return {}
    try:
        return _xargs_decoder.decode(raw) or {}
    except msgspec.ValidationError as error:
        raise InvalidRequestError(f"{XARGS} is not a JSON object: {error}", param=XARGS) from error


def _record_count(fields: Mapping[str, msgspec.Raw], dialect: Dialect) -> int:
    """Return prompts times choices; an invalid value, which the engine will refuse, counts as one."""
    choices = _decoded(fields, "n") if dialect.has_choices else None
    choice_count = choices if isinstance(choices, int) and choices > 0 else 1
    prompts = _items(fields, dialect.prompts_field)
    # A list of numbers is one tokenised prompt; a list of texts or of lists is one prompt each.
    is_batch = bool(prompts) and _first_byte(prompts[0]) in (b'"', b"[")
    return choice_count * (len(prompts) if is_batch else 1)


def _check_messages(body: CallBody, name: str, limit: int) -> None:
    count = len(_items(body.fields, name))
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
    value = _decoded(body.fields, name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _items(fields: Mapping[str, msgspec.Raw], name: str | None) -> list[msgspec.Raw]:
    """Return the items of a list in the body; anything else has none."""
    raw = None if name is None else fields.get(name)
    return [] if raw is None or _first_byte(raw) != b"[" else _items_decoder.decode(raw)


def _decoded(fields: Mapping[str, msgspec.Raw], name: str) -> object:
    # The body was decoded as a whole, so each of its fields is sound JSON.
    raw = fields.get(name)
    return None if raw is None else msgspec.json.decode(raw)


def _first_byte(raw: msgspec.Raw) -> bytes:
    return memoryview(raw)[:1].tobytes()
