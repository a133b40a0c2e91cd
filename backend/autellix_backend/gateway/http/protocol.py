"""HTTP connections within bounds: uvicorn's protocol, with limits on what a client may send, hold and leave.

Uvicorn's parser keeps a head of any size, waits for it for ever, and keeps the answers of clients that do not
read them. Each bound below ends such a connection; none touches a client that speaks HTTP as libraries do.
"""

from __future__ import annotations

import asyncio
import resource
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.types import Scope
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from autellix_backend.gateway.errors import (
    GatewayError,
    HeadTooLargeError,
    InvalidRequestError,
    RequestTimeoutError,
    TargetTooLongError,
    TooManyConnectionsError,
    error_shape,
)

MAX_TARGET_BYTES = 8 * 1024
"""Path and query: an id in a path has 256 bytes, three times as many when escaped."""
MAX_HEAD_BYTES = 64 * 1024
"""The headers together; those of our own take below 8 KiB with 64 parents."""
MAX_HEADERS = 128
HEAD_TIMEOUT_S = 20.0
"""From the connection, or the first byte of a later head, to the head's end; across an ocean it takes 1 s."""
MAX_PIPELINED = 16
"""Requests that may wait for the answer to an earlier one; a piece of 256 KiB holds 14,000 small ones."""
LINGER_S = 2.0
"""How long the rest of a refused request is read and dropped: a reset could overtake the answer."""
STALL_PERIOD_S = 30.0
MIN_READ_BYTES = 32 * 1024
"""What a client with undelivered bytes must take in a stall period, or it is held to be gone."""
RESERVED_FILES = 64
"""File descriptors for everything but the connections of clients and to engines."""
KEEP_ALIVE_S = 75
"""How long a connection may lie idle: longer than clients keep theirs, or a call would meet its end. Above
the bound on connections the oldest idle one leaves sooner."""
PIECE_BYTES = 4 * 1024
"""Parsed at once; as chunks of one byte they take half a millisecond."""
PARSE_S = 0.001
"""Of longer reads, what is not parsed after this time waits for a later round of the event loop."""
CYCLE = "autellix.cycle"
"""Key in the state of a request's scope: its cycle of uvicorn's, which knows whether the client has left."""
MAX_CONNECTIONS = 65_536
"""Whatever the operating system allows: an idle connection takes about 10 KiB."""


def has_left(scope: Scope) -> bool:
    """Return whether a request's client has left already; False where another server serves it."""
    find_cycle = scope.get("state", {}).get(CYCLE)
    cycle = None if find_cycle is None else find_cycle()
    return cycle is not None and cycle.disconnected


class ConnectionTable:
    """The open connections of one server, and those among them without a request, oldest first."""

    def __init__(self, max_connections: int) -> None:
        self.max_connections = max_connections
        self.long_reads = LongReads()
        self._open: set[BoundedHttpProtocol] = set()
        self._idle: dict[BoundedHttpProtocol, None] = {}

    def add(self, connection: BoundedHttpProtocol) -> bool:
        """Add a new connection, at the price of the oldest idle one; return False if there is none."""
        if len(self._open) >= self.max_connections:
            oldest = next(iter(self._idle), None)
            if oldest is None:
                return False
            self.remove(oldest)
            oldest.transport.close()
        self._open.add(connection)
        self._idle[connection] = None
        return True

    def remove(self, connection: BoundedHttpProtocol) -> None:
        """Remove a connection; it may be gone already."""
        self._open.discard(connection)
        self._idle.pop(connection, None)

    def set_busy(self, connection: BoundedHttpProtocol) -> None:
        """Note that a connection has a request."""
        self._idle.pop(connection, None)

    def set_idle(self, connection: BoundedHttpProtocol) -> None:
        """Note that a connection waits for its next request."""
        if connection in self._open:
            self._idle[connection] = None


class LongReads:
    """Connections with long reads: one of them goes on to parse, or to read, in a round of the event loop."""

    def __init__(self) -> None:
        self._waiting: deque[BoundedHttpProtocol] = deque()

    @property
    def are_waiting(self) -> bool:
        """Whether a connection waits for its turn."""
        return bool(self._waiting)

    def add(self, connection: BoundedHttpProtocol) -> None:
        """Have a connection parse more, a while in each of its turns, until it has parsed all."""
        if not self._waiting:
            connection.loop.call_soon(self._go_on)
        self._waiting.append(connection)

    def _go_on(self) -> None:
        connection = self._waiting.popleft()
        if self._waiting:
            connection.loop.call_soon(self._go_on)
        connection.parse_more()


class _HeldFlow(FlowControl):
    """Pauses reading for the app, as uvicorn's does, and while a long read is parsed."""

    is_held = False
    _is_paused = False
    """By the app, while held."""

    def pause_reading(self) -> None:
        if self.is_held:
            self._is_paused = True
        else:
            super().pause_reading()

    def resume_reading(self) -> None:
        if self.is_held:
            self._is_paused = False
        else:
            super().resume_reading()

    def hold_reading(self) -> None:
        if not self.is_held:
            self._is_paused = self.read_paused
            super().pause_reading()
            self.is_held = True

    def release_reading(self) -> None:
        was_held, self.is_held = self.is_held, False
        if was_held and not self._is_paused:
            super().resume_reading()


class _Timer:
    """One timer that may be started again."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None

    @property
    def is_running(self) -> bool:
        return self._handle is not None

    def start(self, delay_s: float, action: Callable[[], None]) -> None:
        self.cancel()
        self._handle = self._loop.call_later(delay_s, action)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class BoundedHttpProtocol(HttpToolsProtocol):
    """The connection of a client."""

    flow: _HeldFlow

    def __init__(self, *args: Any, table: ConnectionTable, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._table = table
        self._requests = 0
        """Heads that were complete."""
        self._unanswered: deque[RequestResponseCycle] = deque()
        """Those whose answers are not complete, in order."""
        self._unparsed = memoryview(b"")
        """Of a long read."""
        self._pieces: list[bytes] = []
        """Of a body, not yet passed on: a chunk may have one byte."""
        self._is_in_head = True
        self._has_progressed = False
        self._unfinished_bytes = 0
        """Bytes since the parser finished a head, a piece of a body or a message; it may hold them all."""
        self._refusal: GatewayError | None = None
        self._is_refused = False
        self._head_timer = _Timer(self.loop)
        self._linger_timer = _Timer(self.loop)
        self._stall_timer = _Timer(self.loop)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection if there is room for it."""
        super().connection_made(transport)
        self.flow = _HeldFlow(transport)
        if self._table.add(self):
            self._await_head()
        else:
            self._refuse(TooManyConnectionsError(self._table.max_connections))

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection, and tell all its requests."""
        self._table.remove(self)
        self._unparsed = memoryview(b"")
        # Uvicorn tells the last one only: an earlier one, perhaps a call that runs, would never end.
        for cycle in self._unanswered:
            cycle.disconnected = True
            cycle.message_event.set()
        for timer in (self._head_timer, self._linger_timer, self._stall_timer):
            timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came; of a long read what is left after a while in later rounds."""
        if len(data) <= PIECE_BYTES:
            self._parse(data)
            self._pass_pieces()
            return
        self._unparsed = memoryview(data)
        if self._table.long_reads.are_waiting:
            self._wait_for_turn()
        else:
            self.parse_more()

    def parse_more(self) -> None:
        """Parse more of a long read, for a while; when all is parsed read on in a later round."""
        end_s = time.perf_counter() + PARSE_S
        while self._unparsed:
            piece, self._unparsed = self._unparsed[:PIECE_BYTES], self._unparsed[PIECE_BYTES:]
            self._parse(bytes(piece))
            if time.perf_counter() >= end_s:
                break
        self._pass_pieces()
        if self._unparsed or not self.flow.is_held:
            # The next read has its turn too: libuv reads up to 32 times in a round, 8 MiB, if so much comes.
            self._wait_for_turn()
        elif not self.transport.is_closing():
            self.flow.release_reading()

    def _wait_for_turn(self) -> None:
        if not self.transport.is_closing():
            self.flow.hold_reading()
            self._table.long_reads.add(self)

    def _parse(self, data: bytes) -> None:
        """Parse bytes, unless too much of a head, a chunk's extension or a trailer is unfinished."""
        if self._is_refused:
            return
        if self._unfinished_bytes > MAX_HEAD_BYTES:
            self._refuse(self._oversize())
            return
        self._has_progressed = False
        super().data_received(data)
        if self._has_progressed:
            self._unfinished_bytes = 0
            return
        self._unfinished_bytes += len(data)
        if not self._head_timer.is_running and self._is_in_head and not self._is_refused:
            self._await_head()

    def send_400_response(self, msg: str) -> None:
        """Answer what the parser, or a bound, refused."""
        self._refuse(self._refusal or InvalidRequestError(msg))

    def on_headers_complete(self) -> None:
        """Check a complete head, and serve its request.

        Raises:
            GatewayError: if it is too large; the parser passes it on as an error of its own.
        """
        self._has_progressed = True
        self._is_in_head = False
        self._requests += 1
        self._head_timer.cancel()
        if self._is_oversize():
            self._refusal = self._oversize()
            raise self._refusal
        if len(self._unanswered) > MAX_PIPELINED:
            # An earlier answer is under way: no client gets to read this one.
            raise InvalidRequestError(f"more than {MAX_PIPELINED} requests wait")
        self._table.set_busy(self)
        super().on_headers_complete()
        self._unanswered.append(self.cycle)
        # The cycle refers to the scope: a strong reference back would leave each request to the collector.
        self.scope["state"][CYCLE] = weakref.ref(self.cycle)
        # Trailers come as headers do; none may join those of the request, which is under way.
        self.headers = []

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body."""
        self._has_progressed = True
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        """Take the end of a request."""
        self._has_progressed = True
        self._is_in_head = True
        self._pass_pieces()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request, but not for ever for the rest of one that is answered already."""
        self._unanswered.popleft()
        super().on_response_complete()
        if self.transport.is_closing() or self.pipeline:
            return
        self._table.set_idle(self)
        if not self._is_in_head:
            self._linger_timer.start(LINGER_S, partial(self._close_unread, self._requests))

    def pause_writing(self) -> None:
        """Watch whether the client takes what is written to it."""
        super().pause_writing()
        self._watch_reading()

    def resume_writing(self) -> None:
        """End the watch: the client has taken nearly all."""
        self._stall_timer.cancel()
        super().resume_writing()

    def _pass_pieces(self) -> None:
        if self._pieces:
            body = b"".join(self._pieces)
            self._pieces.clear()
            super().on_body(body)

    def _is_oversize(self) -> bool:
        if len(self.url) > MAX_TARGET_BYTES or len(self.headers) > MAX_HEADERS:
            return True
        return sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD_BYTES

    def _oversize(self) -> GatewayError:
        if len(self.url) > MAX_TARGET_BYTES:
            return TargetTooLongError(MAX_TARGET_BYTES)
        return HeadTooLargeError(MAX_HEADERS, MAX_HEAD_BYTES)

    def _refuse(self, error: GatewayError) -> None:
        """Answer with an error and end the connection, some time later if more of the request may come."""
        self._is_refused = True
        self._head_timer.cancel()
        self._table.remove(self)
        if self.cycle is not None and not self.cycle.response_complete:
            # The answer to an earlier request is under way: another may not be written into it.
            self.transport.abort()
            return
        path = b"" if self.scope is None else self.url
        body = error.body(error_shape(path.decode("latin-1")))
        head = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
        lines = [f"{name}: {value}\r\n".encode("latin-1") for name, value in head.items()]
        self.transport.write(
            b"".join([STATUS_LINE[error.status], *lines, b"connection: close\r\n\r\n", body])
        )
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._linger_timer.start(LINGER_S, self.transport.abort)

    def _await_head(self) -> None:
        self._head_timer.start(HEAD_TIMEOUT_S, self._on_head_timeout)

    def _on_head_timeout(self) -> None:
        if self._unfinished_bytes:
            self._refuse(RequestTimeoutError(f"its head took longer than {HEAD_TIMEOUT_S:g} s"))
        else:
            self.transport.close()

    def _close_unread(self, requests: int) -> None:
        if requests == self._requests and not self._is_in_head:
            self.transport.abort()

    def _watch_reading(self) -> None:
        left_bytes = self.transport.get_write_buffer_size()
        self._stall_timer.start(STALL_PERIOD_S, partial(self._check_reading, left_bytes))

    def _check_reading(self, before_bytes: int) -> None:
        if before_bytes - self.transport.get_write_buffer_size() < MIN_READ_BYTES:
            self.transport.abort()
        else:
            self._watch_reading()


def bounded_protocol(max_connections: int) -> Callable[..., BoundedHttpProtocol]:
    """Return the protocol factory of one server, for uvicorn's `http`."""
    return partial(BoundedHttpProtocol, table=ConnectionTable(max_connections))


def connection_limit() -> int:
    """Raise the limit of open files as far as allowed; return how many connections of clients it allows.

    Half of the files are for connections to engines: each call may need one.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * MAX_CONNECTIONS + RESERVED_FILES
    files = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    return max(1, (files - RESERVED_FILES) // 2)
