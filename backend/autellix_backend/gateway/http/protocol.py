"""HTTP connections within bounds: uvicorn's protocol, with limits on what a client may send, hold and leave.

Uvicorn's parser keeps a head of any size, waits for it for ever, and keeps the answers of clients that do not
read them. Each bound below ends such a connection; none touches a client that speaks HTTP as libraries do.
"""

from __future__ import annotations

import asyncio
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
from autellix_backend.gateway.http.connections import ConnectionTable
from autellix_backend.gateway.http.rounds import FOLLOW_UP_S, REQUEST_S, Rounds
from autellix_backend.gateway.requests import WATCH_CLIENT

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
KEEP_ALIVE_S = 75
"""How long a connection may lie idle: longer than clients keep theirs, or a call would meet its end. Above
the bound on connections the oldest idle one leaves sooner."""
PIECE_BYTES = 4 * 1024
"""Parsed at once; as chunks of one byte they take half a millisecond."""
CONNECTION = "autellix.connection"
"""Key in the state of a request's scope: a weak reference to its connection."""
CYCLE = "autellix.cycle"
"""Key in the state of a request's scope: its cycle of uvicorn's, which knows whether the client has left."""
ABORT_S = 0.0005
"""What the end of a request without a client costs in later rounds: its call is aborted and settled."""


def has_left(scope: Scope) -> bool:
    """Return whether a request's client has left already; False where another server serves it."""
    find_cycle = scope.get("state", {}).get(CYCLE)
    cycle = None if find_cycle is None else find_cycle()
    return cycle is not None and cycle.disconnected


def set_owner(scope: Scope, tenant: str) -> None:
    """Count the connection of a request as one of a tenant, in place of its client's address."""
    find_connection = scope.get("state", {}).get(CONNECTION)
    connection = None if find_connection is None else find_connection()
    if connection is not None:
        connection.owner = tenant


def _watch_client(
    find_connection: Callable[[], BoundedHttpProtocol | None],
    find_cycle: Callable[[], RequestResponseCycle | None],
    leave: Callable[[], None],
) -> Callable[[], Any]:
    """Call `leave` when the client of a request disconnects; see `requests.WatchClient`."""
    connection, cycle = find_connection(), find_cycle()
    if connection is None or cycle is None or cycle.disconnected:
        return asyncio.get_running_loop().call_soon(leave).cancel
    return connection.watch(cycle, leave)


class _HeldFlow(FlowControl):
    """Pauses reading for the app, as uvicorn's does, and while a read waits for its turn."""

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

    def __init__(
        self, *args: Any, table: ConnectionTable, rounds: Rounds, owner: str = "", **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._table = table
        self._rounds = rounds
        self.owner = owner
        """Whose turn it takes: its client's address, or the tenant of its first bytes or its last request."""
        self._requests = 0
        """Heads that were complete."""
        self._unanswered: deque[RequestResponseCycle] = deque()
        """Those whose answers are not complete, in order."""
        self._watches: dict[RequestResponseCycle, Callable[[], None]] = {}
        """By request, what is called if the client disconnects before its answer."""
        self._unparsed: bytes | memoryview = b""
        """Of what was read."""
        self._is_at_end = False
        """Whether the client has closed its end."""
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

    def evict(self) -> None:
        """Close the connection, which has no request, for a newer one."""
        self.transport.close()

    def watch(self, cycle: RequestResponseCycle, leave: Callable[[], None]) -> Callable[[], Any]:
        """Call `leave` when the client disconnects; return what ends the watch."""
        # A long body has paused it: the client's end would not be seen.
        self.flow.resume_reading()
        self._watches[cycle] = leave
        return partial(self._watches.pop, cycle, None)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection if there is room for it."""
        super().connection_made(transport)
        self.flow = _HeldFlow(transport)
        if not self.owner and self.client:
            self.owner = self.client[0]
        if self._table.add(self):
            self._await_head()
        else:
            self._refuse(TooManyConnectionsError(self._table.max_connections))

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection, and end its requests in its turn: all of a client's may be lost at once."""
        self._table.remove(self)
        self._unparsed = b""
        for timer in (self._head_timer, self._linger_timer, self._stall_timer):
            timer.cancel()
        if not self._unanswered:
            super().connection_lost(exc)
            return
        for cycle in self._unanswered:
            cycle.disconnected = True
        self._rounds.run(self.owner, partial(self._end_requests, exc))

    def _end_requests(self, exc: Exception | None) -> None:
        # Uvicorn ends the last one only: an earlier one, perhaps a call that runs, would never end.
        for cycle in self._unanswered:
            cycle.message_event.set()
            if (leave := self._watches.pop(cycle, None)) is not None:
                leave()
            self._rounds.charge(ABORT_S)
        super().connection_lost(exc)
        # Those behind the first never begin: they and this refer to each other, and only a collection of
        # garbage, which stops all calls, would find thousands of them.
        self.cycle = self._unanswered[0]
        self.pipeline.clear()
        self._unanswered.clear()

    def data_received(self, data: bytes) -> None:
        """Parse what was read, in this round of the event loop or in later ones."""
        is_long = len(data) > PIECE_BYTES
        self._unparsed = memoryview(data) if is_long else data
        self._rounds.run(self.owner, self._parse_unparsed)
        if self._unparsed:
            self.flow.hold_reading()
        elif is_long:
            # libuv would read on, up to 8 MiB in this round.
            self.flow.hold_reading()
            self._rounds.wait(self.owner, self._read_on)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Close the connection in its turn: all of a client's may end at once."""
        if not self._is_at_end:
            self._is_at_end = True
            for cycle in self._unanswered:
                cycle.disconnected = True
            self._rounds.run(self.owner, self._close_ended)
        return True

    def _close_ended(self) -> None:
        self._rounds.charge(FOLLOW_UP_S)
        self.transport.close()

    def _parse_unparsed(self) -> None:
        """Parse what was read; wait for another turn where the round is over before."""
        while self._unparsed:
            piece, self._unparsed = self._unparsed[:PIECE_BYTES], self._unparsed[PIECE_BYTES:]
            self._parse(bytes(piece))
            if self._rounds.is_over:
                break
        self._pass_pieces()
        if self._unparsed:
            self._rounds.wait(self.owner, self._parse_unparsed)
        elif self.flow.is_held:
            self._read_on()

    def _read_on(self) -> None:
        if not self.transport.is_closing():
            self.flow.release_reading()

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
        self._rounds.charge(REQUEST_S)
        super().on_headers_complete()
        self._unanswered.append(self.cycle)
        # Both refer to the scope: a strong reference back would leave each request to the collector.
        cycle, connection = weakref.ref(self.cycle), weakref.ref(self)
        self.scope["state"] |= {
            CYCLE: cycle,
            CONNECTION: connection,
            WATCH_CLIENT: partial(_watch_client, connection, cycle),
        }
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


def bounded_protocol(
    table: ConnectionTable, rounds: Rounds | None = None
) -> Callable[..., BoundedHttpProtocol]:
    """Return the protocol factory of one server, for uvicorn's `http`.

    Args:
        table: The server's connections.
        rounds: Bounds what a round of the event loop processes; None for bounds of its own.
    """
    return partial(BoundedHttpProtocol, table=table, rounds=rounds or Rounds())
