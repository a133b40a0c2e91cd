"""Server-sent events: a stream is relayed line by line, with a receipt before its last event.

The receipt is an SSE comment, because a data event would reach the user's code as a chunk without choices.
Clients that parse lines by hand fail on comments, so it goes to those alone that send headers of ours.
"""

from __future__ import annotations

import msgspec

from autellix_backend.gateway.errors import ErrorShape, GatewayError
from autellix_backend.gateway.raw_json import JSON_ERRORS

_FIELDS = (b"data", b"event", b"id", b"retry")
_LONGEST_FIELD = 6
_DATA = b"data:"
_ERRORS = (b'data: {"error":', b"event: error\n", b"event: response.failed\n")
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")


def event_data(lines: bytes) -> list[bytes]:
    """Return the data in whole lines of a stream."""
    return [line.removeprefix(_DATA) for line in lines.splitlines() if line.startswith(_DATA)]


def last_event_start(lines: bytes, ends: tuple[bytes, ...]) -> int:
    """Return where the last event of a stream begins in whole lines; -1 if none of `ends` opens a line."""
    text = b"\n" + lines
    return min([at for end in ends if (at := text.find(b"\n" + end)) >= 0], default=-1)


def error_event(error: GatewayError, shape: ErrorShape, *, is_final: bool = True) -> bytes:
    """Turn an error into an SSE event; the blank line before it closes an event that was cut off.

    Headers can no longer say that the call must not be repeated, so OpenAI's error object does.
    """
    return _event(error.body(shape, is_final=is_final), shape)


def _event(data: bytes, shape: ErrorShape) -> bytes:
    name = b"event: error\n" if shape is ErrorShape.ANTHROPIC else b""
    return b"\n\n" + name + b"data: " + data + b"\n\n"


def begins_stream(chunk: bytes) -> bool:
    """Return whether the first bytes of an answer may be those of server-sent events."""
    start = chunk.removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n")
    name = start[:_LONGEST_FIELD].split(b":")[0].split(b"\r")[0].split(b"\n")[0]
    return any(field.startswith(name) for field in _FIELDS)


def holds_error(chunk: bytes) -> bool:
    """Return whether a chunk holds an engine's error event; within JSON, quotes are escaped."""
    return any(error in chunk for error in _ERRORS)


def ends_event(data: bytes | bytearray, start: int = 0) -> bool:
    """Return whether a blank line ends an event in what follows `start`."""
    return any(data.find(end, max(0, start - len(end))) >= 0 for end in _EVENT_ENDS)


def engine_error_event(content: bytes, error: GatewayError, shape: ErrorShape) -> bytes:
    """Turn an engine's error object into an SSE event; `error` takes its place if it is no such object."""
    try:
        found = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    except JSON_ERRORS:
        found = {}
    if "error" not in found:
        return error_event(error, shape)
    # A line break within would end the event's line.
    return _event(msgspec.json.encode(msgspec.json.decode(content)), shape)
