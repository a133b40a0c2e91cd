"""A client's connection: httptools reads plain requests, h11 reads all others.

httptools takes a fifth of a call's CPU time off, but it loses the body of a request that offers an upgrade,
as each JDK client's does, and reads it as the next request. So it reads only what all servers read alike:
HTTP/1.1 with one Host, a body of a known length, and nothing behind that. Anything else goes to h11 from its
first byte on, and so does the rest of its connection; h11 also refuses what is malformed.
"""

from __future__ import annotations

import asyncio

import h11
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from autellix_backend.gateway.http.authentication import OPEN_PATHS

MAX_HEAD_BYTES = 64 * 1024
"""An unfinished head above this is refused; our own clients' headers take below 8 KiB."""
_OTHER_FRAMING = {b"upgrade", b"transfer-encoding"}


class ClientConnection(HttpToolsProtocol):
    """uvicorn's protocol on httptools, for connections whose requests are plain and follow each other.

    A connection closes unless the head of its first request, and of each next one, is complete within the
    keep-alive time.
    """

    _head = b""
    """What has come of a request, from its first byte until its head is complete."""
    _in_request = False
    """Whether the end of a request that has begun is yet to come."""
    _body_bytes = 0
    """The bytes of a body that were read since the last bytes came."""
    _next = b""
    """What has come behind a request whose answer is not complete."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request; if there are too many connections, close one that has sent none."""
        super().connection_made(transport)
        limit = self.limit_concurrency
        if limit is not None and len(self.connections) >= limit:
            for each in self.connections:
                is_silent = isinstance(each, HttpToolsProtocol | H11Protocol) and each.cycle is None
                if is_silent and each is not self and not each.transport.is_closing():
                    each.transport.close()
                    break
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def data_received(self, data: bytes) -> None:
        """Read some bytes, or leave them to h11."""
        if self.transport.is_closing():
            return
        if not self._in_request and self._is_answering():
            self._next += data
            self.flow.pause_reading()
            return
        if self._head or not self._in_request:
            self._head = self._head + data if self._in_request else data
        self._body_bytes = 0
        try:
            self.parser.feed_data(data)
            is_readable = len(self._head) <= MAX_HEAD_BYTES
        except (HttpParserError, HttpParserUpgrade):
            is_readable = False
        if is_readable:
            return
        if self._head:
            self._leave_to_h11()
        elif self._in_request:
            self.transport.close()
        else:
            # The end of a body, and what is behind it
            self.parser = HttpRequestParser(self)
            self.data_received(data[self._body_bytes :])

    def on_message_begin(self) -> None:
        """Begin a request; it must begin with a read, or its bytes could not be given to h11."""
        if not self._head:
            raise ValueError
        self._in_request = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Begin to answer a plain request."""
        names = [name for name, _ in self.headers]
        if (
            self.parser.should_upgrade()
            or self.parser.get_http_version() != "1.1"
            or names.count(b"host") != 1
            or not _OTHER_FRAMING.isdisjoint(names)
            # httptools keeps blanks at the end of a value. A body in the same read may hold such lines, too.
            or b" \r\n" in self._head
            or b"\t\r\n" in self._head
            or self._has_more()
        ):
            raise ValueError
        # A gateway that is busy is no reason to restart it.
        is_probe = self.url.decode("latin-1") in OPEN_PATHS
        self.limit_concurrency = None if is_probe else self.config.limit_concurrency
        super().on_headers_complete()
        self._head = b""
        self._unset_keepalive_if_required()

    def on_body(self, body: bytes) -> None:
        """Read a part of a body."""
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        self._in_request = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Read what has come of the next request."""
        super().on_response_complete()
        if self._next:
            data, self._next = self._next, b""
            self.data_received(data)

    def _has_more(self) -> bool:
        """Return whether more than a request's body has come behind its head."""
        lengths = [int(value) for name, value in self.headers if name == b"content-length"]
        _, _, rest = self._head.partition(b"\r\n\r\n")
        return len(rest) > sum(lengths)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _leave_to_h11(self) -> None:
        self.connections.discard(self)
        other = _OtherConnection(self.config, self.server_state, self.app_state, self.loop)
        other.timeout_keep_alive_task, self.timeout_keep_alive_task = self.timeout_keep_alive_task, None
        other.connection_made(self.transport)
        self.transport.set_protocol(other)
        other.data_received(self._head)


class _OtherConnection(H11Protocol):
    """uvicorn's protocol on h11, whose timer runs until a head is complete."""

    def data_received(self, data: bytes) -> None:
        timer, self.timeout_keep_alive_task = self.timeout_keep_alive_task, None
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self.timeout_keep_alive_task = timer
        elif timer is not None:
            timer.cancel()
