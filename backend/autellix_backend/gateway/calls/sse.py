"""Relay of server-sent events: every byte as it came, with a receipt before the stream's last event.

The receipt is an SSE comment, because a data event would reach the user's code as a chunk without choices.
"""

from __future__ import annotations

from autellix_backend.gateway.errors import ErrorShape, GatewayError

ERROR_MARKS = (b'data: {"error":', b"event: error\n")


class StreamEndSplitter:
    """Splits a stream of bytes at the line that opens its last event, wherever the chunks happen to break.

    `ends` are the beginnings that such a line may have.
    """

    def __init__(self, ends: tuple[bytes, ...]) -> None:
        self._ends = ends
        self._held = b""
        self._is_line_start = True

    def feed(self, chunk: bytes) -> tuple[bytes, bytes]:
        """Return what may go on at once, and the rest from the last event on (empty until that is found)."""
        data = self._held + chunk
        self._held = b""
        start = self._find(data)
        if start >= 0:
            return data[:start], data[start:]
        line = data.rfind(b"\n") + 1
        may_be_end = (line > 0 or self._is_line_start) and self._begins_end(data[line:])
        if may_be_end:
            data, self._held = data[:line], data[line:]
        if data:
            self._is_line_start = data.endswith(b"\n")
        return data, b""

    def flush(self) -> bytes:
        """Return what is held back at the end of a stream that has no last event."""
        held, self._held = self._held, b""
        return held

    def _begins_end(self, line: bytes) -> bool:
        return any(end.startswith(line) for end in self._ends)

    def _find(self, data: bytes) -> int:
        if self._is_line_start and data.startswith(self._ends):
            return 0
        found = [data.find(b"\n" + end) for end in self._ends]
        return min((at + 1 for at in found if at >= 0), default=-1)


def error_event(error: GatewayError, shape: ErrorShape) -> bytes:
    """Turn an error into an SSE event; the blank line before it closes an event that was cut off.

    No header can say any more that the call is not to be repeated, so OpenAI's error object does.
    """
    name = b"event: error\n" if shape is ErrorShape.ANTHROPIC else b""
    return b"\n\n" + name + b"data: " + error.body(shape, is_final=True) + b"\n\n"


def holds_error(chunk: bytes) -> bool:
    """Say whether a piece of a stream holds an engine's error event; within JSON quotes are escaped."""
    return any(mark in chunk for mark in ERROR_MARKS)
