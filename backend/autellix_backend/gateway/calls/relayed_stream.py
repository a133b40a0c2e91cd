"""A stream of events on its way to the client: what of it goes out at once, how it ended, and its usage.

The dialect's last event ends a stream, whatever its connection does then.
"""

from __future__ import annotations

from autellix_backend.gateway.calls.call import GatewayCall
from autellix_backend.gateway.calls.sse import StreamEndSplitter, ends_event
from autellix_backend.gateway.calls.usage import StreamTail
from autellix_backend.observe.settled_call import Outcome, Usage

EVENT_FIELD = b"data:"


class RelayedStream:
    """The stream of one call from one engine."""

    def __init__(self, call: GatewayCall) -> None:
        self._call = call
        self._splitter = StreamEndSplitter(call.dialect.stream_ends)
        self._kept = StreamTail()
        self.has_error = False
        """Whether an error event has come."""
        self.last_event = bytearray()
        """What has come of the last event, to follow the receipt."""
        self.is_complete = False
        """Whether the last event is there."""

    def feed(self, chunk: bytes) -> bytes:
        """Return what of the next bytes may go out at once."""
        head, found = (b"", chunk) if self.last_event else self._splitter.feed(chunk)
        if head:
            self._kept.feed(head)
            self._call.streamed_events += head.count(EVENT_FIELD)
        if found:
            before = len(self.last_event)
            self.last_event += found
            self.is_complete = ends_event(self.last_event, before)
        return head

    def flush(self) -> bytes:
        """Return the bytes that are kept back because they may begin the last event."""
        return self._splitter.flush()

    def outcome(self) -> Outcome:
        """Return how the stream has ended."""
        if self.has_error:
            return Outcome.ENGINE_ERROR
        return Outcome.OK if self.last_event else Outcome.TRUNCATED

    def usage(self) -> Usage | None:
        """Return the last usage that has come."""
        return self._kept.usage(bytes(self.last_event), self._call.streamed_events)
