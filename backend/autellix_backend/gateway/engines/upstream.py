"""Requests to one engine: connections, the headers that cross, and errors translated to the gateway's."""

from __future__ import annotations

import asyncio
import contextlib
import io
import socket
import weakref
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import aiohttp
from aiohttp.http_exceptions import BadHttpMessage, PayloadEncodingError
from yarl import URL

from autellix_backend.engines.base import Engine
from autellix_backend.engines.remote import RemoteEngine
from autellix_backend.gateway.errors import (
    EngineAnswerError,
    EngineTimeoutError,
    EngineUnavailableError,
    GatewayError,
    InvalidRequestError,
)
from autellix_backend.observe.metrics import GatewayMetrics
from autellix_backend.reports.request_ids import MARK
from autellix_backend.settings import Settings

KEEPALIVE_S = 2.0
"""How long a connection is kept without a request: less than vLLM's 5 s, so that no request meets one that
the engine is closing."""
CONNECT_TIMEOUT_S = 5.0
"""Within a data centre connecting takes milliseconds; a longer wait would only delay the retry elsewhere."""
MAX_HEADER_BYTES = 256 * 1024
"""The longest header of an answer: vLLM describes 2,048 embeddings in bytes in one."""
READ_BYTES = 64 * 1024
"""Reading from an engine pauses at twice as many unread bytes of an answer."""
END_WAIT_S = 1.0
"""How long a response may take to end after its last event, so that its connection can be used again."""
LOOK_PERIOD_S = 1.0
"""How often the connection of a body is looked at."""
SILENT_S = 10.0
"""How long nothing has come from an engine that is cut off: a busy one may answer no probe, and stream."""
DEAD_PEER_S = 60
"""How long a connection stands whose other end confirms nothing: a lost host, or a forgotten NAT entry."""
MAX_PLAIN_BODY_BYTES = 2**20
"""aiohttp writes longer bodies in parts, if they come as a file."""

REQUEST_ID_HEADER = "x-request-id"
FORWARDED_HEADERS = (
    "anthropic-beta",
    "anthropic-version",
    "authorization",
    "content-type",
    "traceparent",
    "tracestate",
    "x-api-key",
    REQUEST_ID_HEADER,
)

TRACE_HEADERS = frozenset({"traceparent", "tracestate", REQUEST_ID_HEADER})
KEY_HEADERS = frozenset({"authorization", "x-api-key", "api-key"})

_PEER_OPTIONS = {
    "TCP_KEEPIDLE": DEAD_PEER_S // 2,
    "TCP_KEEPINTVL": DEAD_PEER_S // 6,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": DEAD_PEER_S * 1000,
}
_NOT_RETURNED = frozenset(
    {
        b"connection",
        b"content-length",
        b"date",
        b"keep-alive",
        b"server",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# After a reset the request may be sent again; without a connection the engine is gone.
_UNSENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
_RESETS = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionResetError)
_FAILURES = (aiohttp.ClientError, TimeoutError, OSError)
AT_ONCE_S = 0.5
"""How soon the reset of a kept connection comes if the engine had closed it before it read the request."""
MAY_HAVE_RUN = "closed the connection before its answer was complete, so the request may have run"


class EngineResetError(EngineUnavailableError):
    """The engine had closed a kept connection, and has not read the request, which may be sent once more."""


class _Sending:
    """A request on its way."""

    was_reused = False
    """Whether its connection has carried another one."""


async def _note_reuse(_session: aiohttp.ClientSession, context: Any, _parameters: object) -> None:
    context.trace_request_ctx.was_reused = True


class Upstream:
    """Requests to one engine, which may come back at another address."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        metrics: GatewayMetrics,
        *,
        hides_keys: bool = False,
    ) -> None:
        """Create it without connections.

        Args:
            engine: The engine to send requests to.
            settings: Timeouts, and the key for the engine in place of the client's.
            metrics: Count the requests that are sent again.
            hides_keys: Whether clients' keys are the gateway's own, which no engine may see.
        """
        self._engine = engine
        api_key = settings.engine.api_key
        # Without a key of our own, the credentials in the engine's address are used.
        in_address = engine.authorization if isinstance(engine, RemoteEngine) else None
        self._authorization = in_address if api_key is None else f"Bearer {api_key}"
        self._hides_keys = hides_keys or self._authorization is not None
        self._settings = settings.gateway
        self.on_retry = metrics.retries.labels(engine.name).inc
        self._session: aiohttp.ClientSession | None = None
        self._sockets = weakref.WeakSet[socket.socket]()
        self._heard_s = 0.0
        """When anything of an answer came last."""
        self._ending: set[aiohttp.ClientResponse] = set()
        """Responses of which everything but their end has come."""

    def open(self) -> None:
        """Allow requests; must be called in the event loop.

        The head of an answer is bounded: aiohttp takes 128 headers.
        """
        tracing = aiohttp.TraceConfig()
        tracing.on_connection_reuseconn.append(_note_reuse)
        self._session = aiohttp.ClientSession(
            trace_configs=[tracing],
            connector=aiohttp.TCPConnector(
                limit=0, keepalive_timeout=KEEPALIVE_S, socket_factory=self._make_socket
            ),
            timeout=aiohttp.ClientTimeout(total=self._settings.upstream_timeout_s, connect=CONNECT_TIMEOUT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            read_bufsize=READ_BYTES,
            max_field_size=MAX_HEADER_BYTES,
            skip_auto_headers=("User-Agent",),
        )

    async def close(self) -> None:
        """Close the connections; those of running calls too."""
        for response in list(self._ending):
            self._close_ending(response)
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def cut_off(self) -> None:
        """Break all connections if nothing has come over any of them lately.

        Their requests fail as if the engine had died. Once it continues, it finds them closed and aborts.
        """
        if asyncio.get_running_loop().time() - self._heard_s < SILENT_S:
            return
        for each in list(self._sockets):
            with contextlib.suppress(OSError):
                # Closing would wait until the engine has taken all that was sent.
                each.shutdown(socket.SHUT_RDWR)

    def _make_socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        made = socket.socket(*address[:3])
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # macOS has other names.
        for name, value in _PEER_OPTIONS.items():
            if hasattr(socket, name):
                made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._sockets.add(made)
        return made

    async def forward(
        self, method: str, target: str, headers: Mapping[str, str], data: bytes
    ) -> aiohttp.ClientResponse:
        """Send a request as send() does, and once more where it cannot have run.

        Raises:
            EngineAnswerError: also if the engine closes the connection, and may have run the request.
        """
        try:
            return await self.send(method, target, headers, data)
        except EngineUnavailableError as error:
            if error.is_unsent:
                raise
            if method != "GET" and not isinstance(error, EngineResetError):
                raise self.bad_answer(MAY_HAVE_RUN) from error
            self.on_retry()
            return await self.send(method, target, headers, data, is_retry=True)

    async def send(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        data: bytes,
        *,
        is_retry: bool = False,
    ) -> aiohttp.ClientResponse:
        """Send a request; return the response at its head, its body to be read or closed.

        Args:
            method: The HTTP method.
            target: Path and query, already escaped.
            headers: The headers to send; see request_headers().
            data: The body.
            is_retry: Whether the request was sent before, so that the engine may know of it.

        Raises:
            EngineResetError: if the engine has not read the request, which may be sent once more.
            EngineUnavailableError: if the engine is gone, or closes the connection; it may have read it.
            EngineTimeoutError: if it does not answer in time.
            EngineAnswerError: if its answer has no readable head, or a status that is no answer.
        """
        if not is_retry and not self._engine.is_alive():
            raise self.unavailable(ConnectionError("it is not running"), is_unsent=True)
        assert self._session is not None, "the app's lifespan has not begun"
        url, sent = _url(self._engine.base_url, target), self._with_our_key(headers)
        body = data if len(data) <= MAX_PLAIN_BODY_BYTES else io.BytesIO(data)
        sending, now = _Sending(), asyncio.get_running_loop().time
        began_s = now()
        try:
            response = await self._session.request(
                method,
                url,
                data=body or None,
                headers=sent,
                allow_redirects=False,
                trace_request_ctx=sending,
            )
        except _UNSENT as error:
            raise self.unavailable(error, is_unsent=not is_retry) from error
        except _RESETS as error:
            # One that ends as usual may come from an engine that has read all.
            has_ended = isinstance(error, aiohttp.ServerDisconnectedError)
            if is_retry or has_ended or not sending.was_reused or now() - began_s > AT_ONCE_S:
                raise self.unavailable(error) from error
            raise EngineResetError(f"engine {self._engine.name} reset the connection") from error
        except _FAILURES as error:
            raise self._translate(error) from error
        self._heard_s = now()
        if not (200 <= response.status < 300 or 400 <= response.status < 600):
            # A redirect would send the client, with its key, elsewhere.
            response.close()
            raise self.bad_answer(f"answered with status {response.status}")
        if not response.content.is_eof():
            asyncio.get_running_loop().call_later(LOOK_PERIOD_S, _look, response)
        return response

    async def read(self, response: aiohttp.ClientResponse) -> bytes:
        """Read a whole body; close the connection of one that is cut short, so that the engine aborts it.

        Raises:
            EngineUnavailableError: if the engine dies meanwhile.
            EngineTimeoutError: if it does not end in time.
            EngineAnswerError: if it is too long, or breaks the rules of HTTP.
        """
        parts: list[bytes] = []
        left_bytes = self._settings.max_answer_bytes
        try:
            self.check_size(response.content_length or 0)
            while part := await self.read_part(response):
                parts.append(part)
                left_bytes -= len(part)
                if left_bytes < 0:
                    raise self._too_long()
            return b"".join(parts)
        finally:
            response.close()

    async def read_part(self, response: aiohttp.ClientResponse) -> bytes:
        """Return what has come of a body since the part before, nothing at its end; raises as read() does."""
        try:
            part = await response.content.readany()
        except _FAILURES as error:
            raise self._translate(error) from error
        self._heard_s = asyncio.get_running_loop().time()
        return part

    def let_end(self, response: aiohttp.ClientResponse) -> None:
        """Keep the connection of a response that needs no more reading, if the response ends soon."""
        if not response.content.is_eof():
            self._ending.add(response)
            asyncio.get_running_loop().call_later(END_WAIT_S, self._close_ending, response)

    def _close_ending(self, response: aiohttp.ClientResponse) -> None:
        self._ending.discard(response)
        response.close()

    def shows_key(self, headers: Mapping[str, str]) -> bool:
        """Return whether the engine sees the client's own key in a request with these headers."""
        return not self._hides_keys and not KEY_HEADERS.isdisjoint(headers)

    def check_size(self, size_bytes: int) -> None:
        """Raise an EngineAnswerError if an answer of this size may not be buffered."""
        if size_bytes > self._settings.max_answer_bytes:
            raise self._too_long()

    def bad_answer(self, problem: str) -> EngineAnswerError:
        """Return the error of an answer that cannot be used."""
        return EngineAnswerError(self._engine.name, problem)

    def _translate(self, error: Exception) -> GatewayError:
        if isinstance(error, TimeoutError):
            return EngineTimeoutError(f"engine {self._engine.name} did not answer in time")
        if isinstance(error, aiohttp.ClientResponseError):
            return self.bad_answer(f"broke the rules of HTTP ({type(error.__cause__ or error).__name__})")
        if isinstance(error, aiohttp.ClientPayloadError) and _is_malformed(error):
            return self.bad_answer(f"broke the rules of HTTP in its body ({type(error.__cause__).__name__})")
        return self.unavailable(error)

    def unavailable(self, error: Exception, *, is_unsent: bool = False) -> EngineUnavailableError:
        """Return the error of a call that could not be sent, or whose engine died; it says why, if known."""
        reason = self._engine.failure() or str(error) or type(error).__name__
        message = f"engine {self._engine.name} is not reachable: {reason}"
        return EngineUnavailableError(message, is_unsent=is_unsent)

    def _too_long(self) -> EngineAnswerError:
        limit = self._settings.max_answer_bytes
        return self.bad_answer(f"answered with more than {limit} bytes (gateway.max_answer_bytes)")

    def _with_our_key(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        if not self._hides_keys:
            return headers
        ours = {name: value for name, value in headers.items() if name.lower() not in KEY_HEADERS}
        return ours if self._authorization is None else {**ours, "authorization": self._authorization}


@lru_cache(256)
def _url(base_url: str, target: str) -> URL:
    """Return the address of a request; credentials in the engine's are sent as a header."""
    base = URL(base_url).with_user(None)
    return URL(f"{base.origin()}{base.raw_path.rstrip('/')}{target}", encoded=True)


def _look(response: aiohttp.ClientResponse, was_closed: bool = False) -> None:
    """Fail a body that cannot arrive: after a malformed chunk aiohttp closes, and wakes no reader."""
    content, connection = response.content, response.connection
    if connection is None or content.is_eof() or content.exception() is not None:
        return
    is_closed = connection.transport is None or connection.transport.is_closing()
    if is_closed and was_closed:
        content.set_exception(
            aiohttp.ClientResponseError(response.request_info, (), message="a malformed chunk")
        )
        return
    # Closed at one look only, its end may still be on the way to the reader.
    asyncio.get_running_loop().call_later(LOOK_PERIOD_S, _look, response, is_closed)


def _is_malformed(error: aiohttp.ClientPayloadError) -> bool:
    """Return whether a body broke HTTP's rules; one that only ends early comes from an engine that died."""
    cause = error.__cause__
    return isinstance(cause, BadHttpMessage) and not isinstance(cause, PayloadEncodingError)


def request_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Pick the headers that go on to the engine; bodies must return unchanged, so no compression.

    Those of tracing that are not ASCII are dropped.

    Raises:
        InvalidRequestError: if another one holds bytes that are not UTF-8, in which aiohttp writes headers.
    """
    forwarded = {
        name: _sendable(name, headers[name])
        for name in FORWARDED_HEADERS
        if name in headers and (name not in TRACE_HEADERS or headers[name].isascii())
    }
    if MARK in forwarded.get(REQUEST_ID_HEADER, ""):
        # Such an id is an identity, which only the gateway may give.
        del forwarded[REQUEST_ID_HEADER]
    return {"content-type": "application/json", **forwarded, "accept-encoding": "identity"}


def _sendable(name: str, value: str) -> str:
    """Return a header that was read as Latin-1, as aiohttp has to get it to send the same bytes."""
    if value.isascii():
        return value
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        raise InvalidRequestError(f"{name}: is not UTF-8 text; expected ASCII", param=name) from None


def response_headers(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Pick the headers that go back to the client: those of the content, not of the connection.

    They stay bytes: the values of an engine need not be text.
    """
    return [(lowered, value) for name, value in headers if (lowered := name.lower()) not in _NOT_RETURNED]
