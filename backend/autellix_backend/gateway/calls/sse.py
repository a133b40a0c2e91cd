"""Server-sent events: a stream is relayed event by event, with a receipt before its last one.

The receipt is an SSE comment, because a data event would reach the user's code as a chunk without choices.
Clients that parse lines by hand fail on comments, so it goes to those alone that send headers of ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from autellix_backend.gateway.errors import ErrorShape, GatewayError
from autellix_backend.raw_json import JSON_ERRORS

DONE = b"[DONE]"
"""The data of the last event in OpenAI's older dialects."""
FAILED = b"response.failed"
EVENT_END = re.compile(rb"\n\n|\r\r|\n\r(?:\n|(?=[^\n]))")
"""A blank line; a line ends with LF, CR or CRLF. One that may be half of a CRLF waits for its other half."""
EVENT_END_BYTES = 3

_FIELDS = (b"data", b"event", b"id", b"retry")
_LONGEST_FIELD = 6
_BOM = b"\xef\xbb\xbf"


class _Head(msgspec.Struct):
    """What the data of an event says about its type."""

    type: str | None = None
    error: dict[str, msgspec.Raw] | str | None = None


_NO_HEAD = _Head()
_head_decoder = msgspec.json.Decoder(_Head)


class StreamEvent(NamedTuple):
    """One event: its type, its data, and whether it is an error."""

    kind: bytes
    """Its field `event`; without one its `type`, if that was asked for; `[DONE]` for OpenAI's last event."""
    data: bytes
    is_error: bool


def read_event(event: bytes, *, is_typed: bool) -> StreamEvent:
    """Parse an event by the HTML standard; one without fields, such as a comment, has neither type nor data.

    Args:
        event: Its bytes, with or without the blank line.
        is_typed: Whether the data of the dialect's events hold their type, which `event` only repeats.
    """
    kind, lines = b"", list[bytes]()
    for line in event.removeprefix(_BOM).splitlines():
        field, _, value = line.partition(b":")
        if field == b"data":
            lines.append(value.removeprefix(b" "))
        elif field == b"event":
            kind = value.strip()
    data = lines[0] if len(lines) == 1 else b"\n".join(lines)
    if data.strip() == DONE:
        return StreamEvent(DONE, data, False)
    # Within texts, quotes are escaped.
    head = _read_head(data) if b'"error"' in data or (is_typed and not kind) else _NO_HEAD
    kind = kind or (head.type or "").encode()
    return StreamEvent(kind, data, kind in (b"error", FAILED) or bool(head.error))


def _read_head(data: bytes) -> _Head:
    try:
        return _head_decoder.decode(data)
    except JSON_ERRORS:
        return _NO_HEAD


def error_event(
    error: GatewayError,
    shape: ErrorShape,
    *,
    is_final: bool = True,
    response: Mapping[str, msgspec.Raw] | None = None,
) -> bytes:
    """Turn an error into an SSE event; the blank line before it closes an event that was cut off.

    Headers can no longer say that the call must not be repeated, so OpenAI's error object does. `response` is
    the object of a response that fails, as far as it was sent.
    """
    return _event(msgspec.json.decode(error.body(shape, is_final=is_final)), shape, response)


def engine_error_event(content: bytes, error: GatewayError, shape: ErrorShape) -> bytes:
    """Turn an engine's error object into an SSE event; `error` takes its place if it is no such object."""
    try:
        found = msgspec.json.decode(content, type=dict[str, Any])
    except JSON_ERRORS:
        found = {}
    return _event(found, shape) if "error" in found else error_event(error, shape)


def _event(
    error: dict[str, Any], shape: ErrorShape, response: Mapping[str, msgspec.Raw] | None = None
) -> bytes:
    kind = {ErrorShape.ANTHROPIC: b"error", ErrorShape.RESPONSE: FAILED}.get(shape)
    if shape is ErrorShape.RESPONSE:
        error = _failure(error, response or {})
    name = b"" if kind is None else b"event: " + kind + b"\n"
    return b"\n\n" + name + b"data: " + msgspec.json.encode(error) + b"\n\n"


def _failure(error: dict[str, Any], response: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
    """Return the last event of a response that fails.

    Codex reads the error of its response. OpenAI's libraries raise only an error beside it, and a user's loop
    would take the event for the end of an answer.
    """
    found = error["error"] if isinstance(error["error"], dict) else {"message": str(error["error"])}
    code = str(found.get("code") or found.get("type") or "server_error")
    shown = {"code": code, "message": str(found.get("message"))}
    failed = {"object": "response", "output": [], **response, "status": "failed", "error": shown}
    return {"type": FAILED.decode(), "response": failed, "error": found}


def begins_stream(chunk: bytes) -> bool:
    """Return whether the first bytes of an answer may be those of server-sent events."""
    start = chunk.removeprefix(_BOM).lstrip(b"\r\n")
    name = start[:_LONGEST_FIELD].split(b":")[0].split(b"\r")[0].split(b"\n")[0]
    return any(field.startswith(name) for field in _FIELDS)
