"""One HTTP/1.1 connection to an engine, and the responses that come over it one after the other.

A general client's objects for one request took a quarter of a call's processor time. httptools parses here as
it does for clients' connections; what an engine may send is bounded as what a client may.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import cast

import httptools

MAX_HEAD_BYTES = 64 * 1024
"""Of a response's headers together, with those of interim responses; also of a chunk's extensions."""
MAX_UNREAD_BYTES = 128 * 1024
"""Of a body that is not read; reading from the engine pauses then."""
MAX_HEADERS = 256
COPIED_BYTES = 64 * 1024
"""A request's body of so many goes out with its head in one piece; a longer one is not copied."""
PIECE_BYTES = 8 * 1024
"""Parsed at once; as chunks of one byte they take half a millisecond."""
PARSE_S = 0.0005
"""Of a round of the event loop, for what came at once; the rest waits for later rounds."""
BODILESS = (204, 304)


class MalformedResponseError(Exception):
    """What came breaks the rules of HTTP, or the bounds above."""


class EngineResponse:
    """A response: its head, and its body as it is read."""

    def __init__(self, connection: EngineConnection, *, is_head_only: bool) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        """As they came."""
        self.is_head_only = is_head_only
        """Whether no body follows whatever its headers say: the answer to HEAD."""
        self._connection = connection
        self._parts: list[bytes] = []
        self.unread_bytes = 0
        self._has_head = False
        self._is_complete = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def content_type(self) -> str:
        """The type of its body, without parameters."""
        value = self.header(b"content-type") or b"application/octet-stream"
        return value.partition(b";")[0].strip().lower().decode("latin-1")

    @property
    def content_length(self) -> int:
        """The bytes that its body is to have; 0 if its head does not say."""
        return int(self.header(b"content-length") or 0)

    def header(self, name: bytes) -> bytes | None:
        """Return the value of the first header of this name, in lower case."""
        for found, value in self.headers:
            if len(found) == len(name) and found.lower() == name:
                return value
        return None

    async def head(self) -> None:
        """Wait for its head; raises as read_part() does."""
        while not self._has_head:
            if self._error is not None:
                raise self._error
            await self._wait()

    async def read_part(self) -> bytes:
        """Return what has come of its body since the part before, at least one byte; nothing at its end.

        Raises:
            ConnectionResetError: if the connection ends before the body.
            MalformedResponseError: if the body breaks the rules of HTTP.
            TimeoutError: if the response does not end in time.
        """
        while not self._parts:
            if self._error is not None:
                raise self._error
            if self._is_complete:
                return b""
            await self._wait()
        part = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self.unread_bytes = 0
        if not self._is_complete:
            self._connection.adapt_reading()
        return part

    def close(self) -> None:
        """End the connection unless the response has ended: the engine aborts what it does for it."""
        if not self._is_complete:
            self._connection.close()

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # What follows is the connection's.

    def begin(self, status: int) -> None:
        """Take the end of the head."""
        self.status, self._has_head = status, True
        self._wake()

    def add(self, part: bytes) -> None:
        """Take a part of the body."""
        self._parts.append(part)
        self.unread_bytes += len(part)
        self._wake()

    def end(self, error: Exception | None = None) -> None:
        """Take the end of the response, or why there is none."""
        self._error, self._is_complete = error, error is None
        self._wake()


class EngineConnection(asyncio.Protocol):
    """The connection: one request at a time."""

    def __init__(
        self, *, on_free: Callable[[EngineConnection], None], on_lost: Callable[[EngineConnection], None]
    ) -> None:
        """Create its protocol.

        Args:
            on_free: Is called when a response has ended and another request may be sent.
            on_lost: Is called when the connection has ended.
        """
        self._on_free = on_free
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._response: EngineResponse | None = None
        """The one that has not ended."""
        self._deadline: asyncio.TimerHandle | None = None
        self._unparsed = memoryview(b"")
        """Of what came."""
        self._is_in_head = True
        self._headers = 0
        self._head_bytes = 0
        """Of the headers so far."""
        self._ends_with_connection = False
        """Whether nothing else marks the end of the body."""
        self._has_progressed = False
        self._unfinished_bytes = 0
        """Bytes since the parser finished a head or a part of a body; it may hold them all."""
        self._can_stay = True
        self._is_paused = False
        self.free_since_s = 0.0
        """Of the event loop's clock: since when it waits for a request."""

    @property
    def is_closing(self) -> bool:
        """Whether no request may be sent any more."""
        return self._transport.is_closing()

    async def request(
        self, head: bytes, body: bytes, timeout_s: float, *, is_head_only: bool = False
    ) -> EngineResponse:
        """Send a request; return the response at its head, to be read to its end or closed.

        Args:
            head: The request's, with the blank line at its end.
            body: Its body.
            timeout_s: How long the response may take to its end.
            is_head_only: Whether the response has no body, as that to HEAD.

        Raises:
            ConnectionResetError: if the connection ends before the head has come.
            MalformedResponseError: if the head breaks the rules of HTTP.
            TimeoutError: if it does not come in time.
        """
        response = self._response = EngineResponse(self, is_head_only=is_head_only)
        self._deadline = self._loop.call_later(timeout_s, self._fail, TimeoutError())
        if len(body) > COPIED_BYTES:
            self._transport.write(head)
            self._transport.write(body)
        else:
            self._transport.write(head + body)
        try:
            await response.head()
        except BaseException:
            response.close()
            raise
        return response

    def close(self) -> None:
        """End the connection; a response that has not ended fails."""
        self._fail(ConnectionResetError("the gateway closed the connection"))

    def adapt_reading(self) -> None:
        """Read on, or not: while the response is not read, or what came is not parsed, no more may come."""
        response = self._response
        is_full = response is not None and response.unread_bytes > MAX_UNREAD_BYTES
        should_pause = is_full or bool(self._unparsed)
        if should_pause == self._is_paused or self._transport.is_closing():
            return
        self._is_paused = should_pause
        if should_pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the transport."""
        # uvloop's transports are no subclasses.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the response, as complete if this is how it ends."""
        # The parser refers to this.
        self._parser = None
        self._unparsed = memoryview(b"")
        is_end = exc is None and self._ends_with_connection
        self._end_response(
            None if is_end else ConnectionResetError(str(exc or "the engine closed the connection"))
        )
        self._on_lost(self)

    def data_received(self, data: bytes) -> None:
        """Parse what came, in this round of the event loop or in later ones."""
        self._unparsed = memoryview(data)
        self._parse_unparsed()

    def _parse_unparsed(self) -> None:
        end_s = time.perf_counter() + PARSE_S
        while self._unparsed:
            piece, self._unparsed = self._unparsed[:PIECE_BYTES], self._unparsed[PIECE_BYTES:]
            self._parse(piece)
            if self._unparsed and time.perf_counter() > end_s:
                self._loop.call_soon(self._parse_unparsed)
                break
        self.adapt_reading()

    def _parse(self, data: memoryview) -> None:
        if self._response is None or self._parser is None:
            # Nobody asked: it could pass for the answer to the next request.
            self.close()
            return
        self._has_progressed = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._fail(
                cause if isinstance(cause, MalformedResponseError) else MalformedResponseError(str(error))
            )
        except httptools.HttpParserUpgrade:
            self._fail(MalformedResponseError("it changes the protocol"))
        else:
            self._unfinished_bytes = 0 if self._has_progressed else self._unfinished_bytes + len(data)
            if self._unfinished_bytes > MAX_HEAD_BYTES:
                self._fail(_too_large())
        self._become_free()

    def on_message_begin(self) -> None:
        """Take the beginning of a response, which must be one that was asked for."""
        if self._response is None:
            self._can_stay = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; one behind a body is a trailer, and is dropped.

        Raises:
            MalformedResponseError: if there are too many; the parser passes it on in an error of its own.
        """
        self._headers += 1
        self._head_bytes += len(name) + len(value)
        if self._headers > MAX_HEADERS or self._head_bytes > MAX_HEAD_BYTES:
            raise _too_large()
        if self._is_in_head and self._response is not None:
            self._response.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Take the end of a head, of the response or of an interim one before it.

        Raises:
            MalformedResponseError: if it is of no use; passed on as that of on_header().
        """
        response, parser = self._response, self._parser
        if response is None or parser is None:
            return
        status = parser.get_status_code()
        if 100 <= status < 200:
            response.headers.clear()
            return
        coding, length = response.header(b"transfer-encoding"), response.header(b"content-length")
        if coding is not None and coding.strip().lower() != b"chunked":
            raise MalformedResponseError("its transfer coding is not chunked")
        self._has_progressed = True
        self._is_in_head = False
        self._ends_with_connection = coding is None and length is None and status not in BODILESS
        self._can_stay = parser.should_keep_alive() and not response.is_head_only
        response.begin(status)
        if response.is_head_only:
            self._end_response()

    def on_body(self, part: bytes) -> None:
        """Take a part of the body."""
        self._has_progressed = True
        if self._response is not None:
            self._response.add(part)

    def on_message_complete(self) -> None:
        """Take the end of a response, unless it was an interim one."""
        if self._is_in_head:
            return
        self._has_progressed = True
        self._end_response()

    def _fail(self, error: Exception) -> None:
        self._unparsed = memoryview(b"")
        self._end_response(error)
        self._transport.abort()

    def _end_response(self, error: Exception | None = None) -> None:
        response, self._response = self._response, None
        if response is None:
            return
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        response.end(error)

    def _become_free(self) -> None:
        """Wait for the next request once the response has ended, if this connection is fit for one."""
        if self._response is not None or self._unparsed:
            return
        # A request whose end the engine did not wait for would run into the next one.
        if not self._can_stay or self._transport.is_closing() or self._transport.get_write_buffer_size():
            self._transport.abort()
            return
        self._is_in_head = True
        self._headers = self._head_bytes = 0
        self._ends_with_connection = False
        self.free_since_s = self._loop.time()
        self._on_free(self)


def _too_large() -> MalformedResponseError:
    return MalformedResponseError(f"more than {MAX_HEADERS} headers, or {MAX_HEAD_BYTES} bytes of them")
