"""The answer to a call's client: its head with the call's ids and engine, and its body or stream.

A stream whose engine sends nothing for a second begins all the same: its head goes out, and blank lines every
few seconds until the engine's first bytes, so that no proxy and no client takes it for dead. Until then
another engine may still answer; the head names the one that the call was at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aiohttp import ClientResponse
from starlette.types import Send

from autellix_backend.gateway.calls.call import GatewayCall
from autellix_backend.gateway.calls.registry import CallRegistry
from autellix_backend.gateway.calls.sse import ends_event, event_data, last_event_start
from autellix_backend.gateway.calls.usage import StreamTail
from autellix_backend.gateway.engines.upstream import response_headers
from autellix_backend.gateway.identity.answer_ids import opens_tool_call
from autellix_backend.observe.settled_call import Outcome, Usage
from autellix_wire.headers import CALL_ID, ENGINE, IDENTITY_SOURCE, PROGRAM_ID, QUEUE_LEVEL

HEAD_WAIT_S = 1.0
"""How long the head of a stream waits for the engine: what fails until then gets an error with its status."""
BLANK_PERIOD_S = 5.0
EVENT_FIELD = b"data:"
BLANK = b"\n\n"
"""An event without fields. Clients that parse lines by hand skip it; on a comment some of them fail."""
_WAITING_HEAD = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))


@dataclass(slots=True, eq=False)
class Reply:
    """The response to one call; its engine's first bytes free the call's share of the engine's bounds."""

    registry: CallRegistry
    call: GatewayCall
    send: Send
    has_begun: bool = False
    """Whether the client has the head."""
    has_content: bool = False
    """Whether the client has something of the engine's answer, so that no other engine may answer."""
    is_open: bool = False
    """Whether the client expects more of a stream."""
    _timer: asyncio.TimerHandle | None = None
    _blanks: asyncio.Task[None] | None = None

    def keep_alive(self) -> None:
        """Begin a stream after a while, and send blank lines until stop_waiting()."""
        self._timer = asyncio.get_running_loop().call_later(HEAD_WAIT_S, self._start_blanks)

    async def stop_waiting(self) -> None:
        """End the blank lines; whether the head has gone out is certain then."""
        if self._timer is not None:
            self._timer.cancel()
        if self._blanks is not None:
            self._blanks.cancel()
            await asyncio.wait([self._blanks])

    async def send_whole(self, response: ClientResponse, content: bytes, level: int) -> None:
        """Send an engine's answer with this content, from a call that ended at a level."""
        length = (b"content-length", str(len(content)).encode())
        self._take_over()
        await self._begin(
            response.status, [*response_headers(response.raw_headers), *self._head(level), length]
        )
        await self.send({"type": "http.response.body", "body": content})

    async def begin_stream(self, response: ClientResponse) -> None:
        """Send the head of a stream at its first bytes, unless it has gone out already."""
        if self.has_content:
            return
        await self.stop_waiting()
        self._take_over()
        if not self.has_begun:
            head = [*response_headers(response.raw_headers), *self._head(self.call.level)]
            await self._begin(response.status, head)
            self.is_open = True

    async def send_part(self, data: bytes, *, is_last: bool = False) -> None:
        """Send a part of a stream."""
        if self.call.first_bytes_s is None:
            self.registry.on_first_bytes(self.call)
        self.is_open = not is_last
        await self.send({"type": "http.response.body", "body": data, "more_body": not is_last})

    def call_headers(self, level: int) -> Mapping[str, str]:
        """Return the headers that describe the call, of its answer or of the error in its place."""
        return {
            PROGRAM_ID: self.call.shown_program,
            CALL_ID: self.call.start.call_id,
            IDENTITY_SOURCE: self.call.identity.source,
            ENGINE: self.call.engine,
            QUEUE_LEVEL: str(level),
            **self.call.rate_headers,
        }

    def _head(self, level: int) -> list[tuple[bytes, bytes]]:
        headers = self.call_headers(level).items()
        return [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]

    def _take_over(self) -> None:
        self.has_content = True
        self.call.leave_bounds()

    async def _begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        await self.send({"type": "http.response.start", "status": status, "headers": list(headers)})
        self.has_begun = True

    def _start_blanks(self) -> None:
        self._blanks = asyncio.create_task(self._send_blanks())

    async def _send_blanks(self) -> None:
        await self._begin(200, [*_WAITING_HEAD, *self._head(self.call.level)])
        self.is_open = True
        while True:
            await self.send({"type": "http.response.body", "body": BLANK, "more_body": True})
            await asyncio.sleep(BLANK_PERIOD_S)


class RelayedStream:
    """The stream of one call from one engine: what of it may go out, how it ended, and its usage.

    The dialect's last event ends a stream, whatever its connection does then.
    """

    def __init__(self, call: GatewayCall) -> None:
        self._call = call
        self._ends = call.dialect.stream_ends
        self._line = bytearray()
        """What has come of a line whose end has not."""
        self._kept = StreamTail()
        self.has_error = False
        """Whether an error event has come."""
        self.last_event = bytearray()
        """What has come of the last event, to follow the receipt."""
        self.is_complete = False
        """Whether the last event is there."""

    @property
    def held_bytes(self) -> int:
        """The bytes that have come and may not go out yet."""
        return len(self.last_event) + len(self._line)

    def feed(self, chunk: bytes) -> bytes:
        """Return the whole lines that may go out after the next bytes."""
        if self.last_event:
            self._end_with(chunk)
            return b""
        line_start = chunk.rfind(b"\n") + 1
        if not line_start:
            self._line += chunk
            return b""
        lines, self._line = bytes(self._line) + chunk[:line_start], bytearray(chunk[line_start:])
        start = last_event_start(lines, self._ends)
        if start >= 0:
            self._end_with(lines[start:] + chunk[line_start:])
            lines, self._line = lines[:start], bytearray()
        self._kept.feed(lines)
        if opens_tool_call(lines):
            self._note_ids(filter(opens_tool_call, event_data(lines)))
        self._call.streamed_events += lines.count(EVENT_FIELD)
        return lines

    def flush(self) -> bytes:
        """Return the line that was not ended, unless it is the last event."""
        line, self._line = bytes(self._line), bytearray()
        if line.startswith(self._ends):
            self.last_event += line
            line = b""
        # That of a response holds all of it.
        self._note_ids(event_data(bytes(self.last_event)))
        return line

    def outcome(self) -> Outcome:
        """Return how the stream has ended."""
        if self.has_error:
            return Outcome.ENGINE_ERROR
        return Outcome.OK if self.last_event else Outcome.TRUNCATED

    def usage(self) -> Usage | None:
        """Return the last usage that has come."""
        return self._kept.usage(bytes(self.last_event), self._call.streamed_events)

    def _note_ids(self, events: Iterable[bytes]) -> None:
        for event in events:
            self._call.note_ids(event)

    def _end_with(self, data: bytes) -> None:
        before = len(self.last_event)
        self.last_event += data
        self.is_complete = ends_event(self.last_event, before)
