"""The answer to a call's client: its head with the call's ids and engine, and its body or stream.

A stream whose engine sends nothing for a second begins all the same: its head goes out, and blank lines every
few seconds until the engine's first bytes, so that no proxy and no client takes it for dead. Until then
another engine may still answer; the head names the one that the call was at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import msgspec
from aiohttp import ClientResponse
from msgspec import Raw
from starlette.types import Send

from autellix_backend.gateway.calls.call import GatewayCall
from autellix_backend.gateway.calls.registry import CallRegistry
from autellix_backend.gateway.calls.sse import DONE, EVENT_END, EVENT_END_BYTES, read_event
from autellix_backend.gateway.calls.usage import StreamTail, finished_choices
from autellix_backend.gateway.engines.upstream import response_headers
from autellix_backend.identity.answer_ids import opens_tool_call
from autellix_backend.observe.settled_call import Outcome, Usage
from autellix_wire.headers import CALL_ID, ENGINE, IDENTITY_SOURCE, PROGRAM_ID, QUEUE_LEVEL

HEAD_WAIT_S = 1.0
"""How long the head of a stream waits for the engine: what fails until then gets an error with its status."""
BLANK_PERIOD_S = 5.0
BLANK = b"\n\n"
"""An event without fields. Clients that parse lines by hand skip it; on a comment some of them fail."""
_WAITING_HEAD = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))


class Reply(msgspec.Struct, eq=False):
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

    async def send_whole(self, response: ClientResponse, content: bytes, level: int, status: int) -> None:
        """Send an engine's answer with this content and status, from a call that ended at a level."""
        length = (b"content-length", str(len(content)).encode())
        self._take_over()
        await self._begin(status, [*response_headers(response.raw_headers), *self._head(level), length])
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
        if self.call.answer.first_bytes_s is None:
            self.registry.on_first_bytes(self.call)
        self.is_open = not is_last
        await self.send({"type": "http.response.body", "body": data, "more_body": not is_last})

    def call_headers(self, level: int) -> Mapping[str, str]:
        """Return the headers that describe the call, of its answer or of the error in its place."""
        return {
            PROGRAM_ID: self.call.shown_program,
            CALL_ID: self.call.start.call_id,
            IDENTITY_SOURCE: self.call.request.identity.source,
            ENGINE: self.call.assigned.handle.name,
            QUEUE_LEVEL: str(level),
            **self.call.rate_headers,
        }

    def _head(self, level: int) -> list[tuple[bytes, bytes]]:
        headers = self.call_headers(level).items()
        return [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]

    def _take_over(self) -> None:
        self.has_content = True
        self.call.assigned.leave_bounds()

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

    The dialect's last event ends a stream, whatever its connection does then. A stream of choices is whole
    without one, too, if each choice has ended: several servers leave `[DONE]` out.
    """

    def __init__(self, call: GatewayCall) -> None:
        self._call = call
        self._ends = call.request.dialect.stream_ends
        self._is_typed = DONE not in self._ends[:1]
        self._part = bytearray()
        """What has come of an event whose end has not."""
        self._kept = StreamTail()
        self._finished: set[int] = set()
        """The choices that have ended."""
        self._last_data = b""
        self.has_error = False
        """Whether an error event has come."""
        self.error_data = b""
        """The data of the first error event."""
        self.last_event = b""
        """The last event, to follow the receipt."""

    @property
    def is_complete(self) -> bool:
        """Whether the last event is there."""
        return bool(self.last_event)

    @property
    def held_bytes(self) -> int:
        """The bytes that have come and may not go out yet."""
        return len(self._part)

    @property
    def response(self) -> Mapping[str, Raw]:
        """The object of the response that it streams, as it began."""
        return self._kept.response()

    def feed(self, chunk: bytes) -> bytes:
        """Return the whole events that may go out after the next bytes."""
        searched = max(0, len(self._part) - EVENT_END_BYTES)
        if EVENT_END.search(bytes(self._part[searched:]) + chunk) is None:
            self._part += chunk
            return b""
        data, begin = bytes(self._part) + chunk, 0
        self._part.clear()
        for end in EVENT_END.finditer(data, searched):
            if self._ends_with(data[begin : end.end()]):
                return data[:begin]
            begin = end.end()
        self._part += data[begin:]
        return data[:begin]

    def flush(self) -> bytes:
        """Return the event that was not ended, with its end, unless it is the last one."""
        event = bytes(self._part)
        self._part.clear()
        return b"" if not event or self._ends_with(event) else event + BLANK

    def outcome(self) -> Outcome:
        """Return how the stream has ended."""
        if self.has_error:
            return Outcome.ENGINE_ERROR
        body = self._call.request.body
        has_finished = len(self._finished) >= body.prompt_count * body.choice_count
        return Outcome.OK if self.is_complete or has_finished else Outcome.TRUNCATED

    def usage(self) -> Usage | None:
        """Return the last usage that has come."""
        return self._kept.usage(self._last_data, self._call.answer.streamed_events)

    def _ends_with(self, event: bytes) -> bool:
        """Note the next event; return whether it is the last one."""
        kind, data, is_error = read_event(event, is_typed=self._is_typed)
        if is_error and not self.has_error:
            self.has_error, self.error_data = True, data
        if kind in self._ends:
            # That of a response holds all of it.
            self._call.answer.note_ids(data, self._call.request.identity)
            self.last_event, self._last_data = event, data
            return True
        if data:
            self._kept.feed(data)
            self._call.answer.streamed_events += not is_error
            self._finished |= finished_choices(data)
            if opens_tool_call(data):
                self._call.answer.note_ids(data, self._call.request.identity)
        return False
