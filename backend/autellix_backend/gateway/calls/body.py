"""A call's JSON body, of which the gateway decodes only what it needs.

The top level is split into raw slices; messages, tools and unknown fields are passed on byte by byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from autellix_backend.gateway.calls.dialects import Dialect
from autellix_backend.gateway.errors import InvalidRequestError

XARGS = "vllm_xargs"

_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_xargs_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)


@dataclass(frozen=True, slots=True)
class CallBody:
    """A body split at its top level.

    `record_count` is the number of engine requests that it becomes: one for each prompt and choice.
    """

    fields: dict[str, msgspec.Raw]
    xargs: dict[str, msgspec.Raw]
    record_count: int


def parse_body(data: bytes, dialect: Dialect) -> CallBody:
    """Split a body.

    Raises:
        InvalidRequestError: if it or its vllm_xargs is not a JSON object.
    """
    try:
        fields = _fields_decoder.decode(data)
        return CallBody(fields, _xargs(fields), _record_count(fields, dialect))
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequestError(f"the body is not a JSON object: {error}") from error


def _xargs(fields: Mapping[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    raw = fields.get(XARGS)
    if raw is None:
        return {}
    try:
        return _xargs_decoder.decode(raw) or {}
    except msgspec.ValidationError as error:
        raise InvalidRequestError(f"{XARGS} is not a JSON object: {error}", param=XARGS) from error


def _plain(raw: msgspec.Raw | None) -> object:
    return None if raw is None else msgspec.json.decode(raw)


def _record_count(fields: Mapping[str, msgspec.Raw], dialect: Dialect) -> int:
    """Return prompts times choices; an invalid value, which the engine will refuse, counts as one."""
    choices = _plain(fields.get("n")) if dialect.has_choices else None
    choice_count = choices if isinstance(choices, int) and choices > 0 else 1
    return choice_count * _prompt_count(fields.get(dialect.prompts_field or ""))


def _prompt_count(raw: msgspec.Raw | None) -> int:
    if raw is None or _first_byte(raw) != b"[":
        return 1
    items = _items_decoder.decode(raw)
    # A list of numbers is one tokenised prompt; a list of texts or of lists is one prompt each.
    is_batch = bool(items) and _first_byte(items[0]) in (b'"', b"[")
    return len(items) if is_batch else 1


def _first_byte(raw: msgspec.Raw) -> bytes:
    return memoryview(raw)[:1].tobytes()
