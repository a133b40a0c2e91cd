"""Server-sent events: a stream is relayed byte by byte, with a receipt before its last event.

The receipt is an SSE comment, because a data event would reach the user's code as a chunk without choices.
"""

from __future__ import annotations

import msgspec

from autellix_backend.gateway.errors import ErrorShape, GatewayError
from autellix_backend.gateway.raw_json import JSON_ERRORS

_FIELDS = (b"data", b"event", b"id", b"retry")
_LONGEST_FIELD = 6
_ERRORS = (b'data: {"error":', b"event: error\n", b"event: response.failed\n")
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")


class StreamEndSplitter:
    """Splits a stream of bytes at the line that opens its last event, at any split into chunks.

    `ends` are the possible beginnings of that line.
    """

    def __init__(self, ends: tuple[bytes, ...]) -> None:
        self._ends = ends
        self._kept = b""
        self._is_line_start = True

    def feed(self, chunk: bytes) -> tuple[bytes, bytes]:
        """Return the bytes to relay at once, and those from the last event on (empty until it is found)."""
        data = self._kept + chunk
        self._kept = b""
        start = self._find(data)
        if start >= 0:
            return data[:start], data[start:]
        if data.endswith(b"\n"):
            # As nearly all chunks do; no line is cut off that may be the end.
            self._is_line_start = True
            return data, b""
        line = data.rfind(b"\n") + 1
        may_be_end = (line > 0 or self._is_line_start) and self._begins_end(data[line:])
        if may_be_end:
            data, self._kept = data[:line], data[line:]
        if data:
            self._is_line_start = may_be_end
        return data, b""

    def flush(self) -> bytes:
        """Return the bytes that are kept back at the end of a stream without a last event."""
        kept, self._kept = self._kept, b""
        return kept

    def _begins_end(self, line: bytes) -> bool:
        return any(end.startswith(line) for end in self._ends)

    def _find(self, data: bytes) -> int:
        if self._is_line_start and data.startswith(self._ends):
            return 0
        return min([at + 1 for end in self._ends if (at := data.find(b"\n" + end)) >= 0], default=-1)


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
