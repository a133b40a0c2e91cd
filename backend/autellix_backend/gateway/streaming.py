"""Relay of server-sent events: every byte as it came, with a receipt before the final `data: [DONE]`.

The receipt is an SSE comment, because a data event would reach the user's code as a chunk without choices.
"""

from __future__ import annotations

from autellix_backend.gateway.errors import GatewayError

DONE = b"data: [DONE]"


class DoneSplitter:
    """Splits a stream of bytes at the line `data: [DONE]`, wherever the chunks happen to break."""

    def __init__(self) -> None:
        self._held = b""
        self._is_line_start = True

    def feed(self, chunk: bytes) -> tuple[bytes, bytes]:
        """Return what may go on at once, and the rest from `data: [DONE]` on (empty until that is found)."""
        data = self._held + chunk
        self._held = b""
        start = self._find(data)
        if start >= 0:
            return data[:start], data[start:]
        line = data.rfind(b"\n") + 1
        may_be_done = (line > 0 or self._is_line_start) and DONE.startswith(data[line:])
        if may_be_done:
            data, self._held = data[:line], data[line:]
        if data:
            self._is_line_start = data.endswith(b"\n")
        return data, b""

    def flush(self) -> bytes:
        """Return what is held back at the end of a stream that has no `data: [DONE]`."""
        held, self._held = self._held, b""
        return held

    def _find(self, data: bytes) -> int:
        if self._is_line_start and data.startswith(DONE):
            return 0
        found = data.find(b"\n" + DONE)
        return found + 1 if found >= 0 else -1


def receipt_comment(receipt: bytes) -> bytes:
    """Wrap a receipt's JSON into an SSE comment."""
    return b": autellix " + receipt + b"\n\n"


def error_event(error: GatewayError) -> bytes:
    """Turn an error into an SSE data event; the blank line before it closes an event that was cut off."""
    return b"\n\ndata: " + error.body() + b"\n\n"
