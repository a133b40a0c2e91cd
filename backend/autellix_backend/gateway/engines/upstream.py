"""Requests to one engine: connections, the headers that cross, and errors translated to the gateway's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from yarl import URL

from autellix_backend.engines.base import Engine
from autellix_backend.gateway.engines.connection import EngineResponse, MalformedResponseError
from autellix_backend.gateway.engines.connections import EngineConnections, NoConnectionError
from autellix_backend.gateway.errors import (
    EngineAnswerError,
    EngineTimeoutError,
    EngineUnavailableError,
    GatewayError,
)
from autellix_backend.reports.request_ids import MARK
from autellix_backend.settings import GatewaySettings

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

KEY_HEADERS = frozenset({"authorization", "x-api-key", "api-key"})

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
_BODILESS = ("GET", "HEAD")
"""The methods whose requests have no body unless they say so."""


class EngineResetError(EngineUnavailableError):
    """The engine reset the connection before it answered; the request may be sent once more."""


class Upstream:
    """Requests to one engine; each tenant has its connections, so that none waits for what another broke."""

    def __init__(
        self,
        engine: Engine,
        settings: GatewaySettings,
        on_retry: Callable[[], None],
        *,
        api_key: str | None = None,
        authorization: str | None = None,
        hides_keys: bool = False,
        session_header: str | None = None,
    ) -> None:
        """Create it without connections.

        Args:
            engine: The engine to send requests to.
            settings: Timeouts.
            on_retry: Is called for each request that is sent again.
            api_key: The key for the engine, in place of the client's.
            authorization: The credentials in the engine's address, used without `api_key`.
            hides_keys: Whether clients' keys are the gateway's own, which no engine may see.
            session_header: The header that carries the program id, beside that of the engine's kind.
        """
        self._engine = engine
        self._authorization = authorization if api_key is None else f"Bearer {api_key}"
        self._hides_keys = hides_keys or self._authorization is not None
        self.session_header = session_header
        self._settings = settings
        self.on_retry = on_retry
        self._connections: dict[str, EngineConnections] | None = None
        """By tenant; None before the start and after the end."""
        self._address = ""
        """Where they lead; an engine may come back at another one."""

    def open(self) -> None:
        """Allow requests."""
        self._connections = {}

    def close(self) -> None:
        """Close the connections; those of running calls too."""
        connections, self._connections = self._connections or {}, None
        for of_tenant in connections.values():
            of_tenant.close()

    def _connections_of(self, tenant: str) -> EngineConnections:
        assert self._connections is not None, "the app's lifespan has not begun"
        if self._address != self._engine.base_url:
            self.close()
            self._connections, self._address = {}, self._engine.base_url
        connections = self._connections.get(tenant)
        if connections is None:
            connections = self._connections[tenant] = EngineConnections(URL(self._address))
        return connections

    async def forward(
        self, method: str, target: str, headers: Mapping[str, str], data: bytes, *, tenant: str
    ) -> EngineResponse:
        """Send a request as send() does, and once more after a reset."""
        try:
            return await self.send(method, target, headers, data, tenant=tenant)
        except EngineResetError:
            self.on_retry()
            return await self.send(method, target, headers, data, tenant=tenant, is_retry=True)

    async def send(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        data: bytes,
        *,
        tenant: str,
        is_retry: bool = False,
    ) -> EngineResponse:
        """Send a request; return the response at its head, its body to be read or closed.

        Args:
            method: The HTTP method.
            target: Path and query, already escaped.
            headers: The headers to send; see request_headers().
            data: The body.
            tenant: Whose connections to use.
            is_retry: Whether the request was sent before, so that the engine may know of it.

        Raises:
            EngineResetError: if the engine resets the connection, and the request may be sent once more.
            EngineUnavailableError: if the engine is gone, or resets the connection of a retry.
            EngineTimeoutError: if it does not answer in time.
            EngineAnswerError: if its answer has no readable head, or a status that is no answer.
        """
        if not is_retry and not self._engine.is_alive():
            raise self.unavailable(ConnectionError("it is not running"), is_unsent=True)
        lines = _first_lines(method, self._engine.base_url, target)
        if data or method not in _BODILESS:
            lines += f"content-length: {len(data)}\r\n"
        head = _request_head(lines, self._with_our_key(headers))
        try:
            connection = await self._connections_of(tenant).take()
            response = await connection.request(
                head, data, self._settings.upstream_timeout_s, is_head_only=method == "HEAD"
            )
        except NoConnectionError as error:
            raise self.unavailable(error, is_unsent=not is_retry) from error
        except ConnectionError as error:
            if is_retry:
                raise self.unavailable(error) from error
            raise EngineResetError(f"engine {self._engine.name} reset the connection") from error
        except (MalformedResponseError, TimeoutError) as error:
            raise self._translate(error) from error
        if not (200 <= response.status < 300 or 400 <= response.status < 600):
            # A redirect would send the client, with its key, elsewhere.
            response.close()
            raise self.bad_answer(f"answered with status {response.status}")
        return response

    async def read(self, response: EngineResponse) -> bytes:
        """Read a whole body; close the connection of one that is cut short, so that the engine aborts it.

        Raises:
            EngineUnavailableError: if the engine dies meanwhile.
            EngineTimeoutError: if it does not end in time.
            EngineAnswerError: if it is too long, or breaks the rules of HTTP.
        """
        parts: list[bytes] = []
        left_bytes = self._settings.max_answer_bytes
        try:
            self.check_size(response.content_length)
            while part := await self.read_part(response):
                parts.append(part)
                left_bytes -= len(part)
                if left_bytes < 0:
                    raise self._too_long()
            return b"".join(parts)
        finally:
            response.close()

    async def read_part(self, response: EngineResponse) -> bytes:
        """Return what has come of a body since the part before, nothing at its end; raises as read() does."""
        try:
            return await response.read_part()
        except (MalformedResponseError, TimeoutError, ConnectionError) as error:
            raise self._translate(error) from error

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
        if isinstance(error, MalformedResponseError):
            return self.bad_answer(f"broke the rules of HTTP: {error}")
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
def _first_lines(method: str, base_url: str, target: str) -> str:
    """Return the first lines of a request's head: what is asked for, and of which host."""
    url = URL(base_url)
    return f"{method} {url.raw_path.rstrip('/')}{target} HTTP/1.1\r\nhost: {url.host_port_subcomponent}\r\n"


def _request_head(first_lines: str, headers: Mapping[str, str]) -> bytes:
    """Return the head of a request.

    Raises:
        ValueError: if a header holds the end of a line: what follows would be another header, or a request.
    """
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if not lines.count("\r") == lines.count("\n") == len(headers) or "\0" in lines:
        raise ValueError("a header to an engine holds a line break or a null character")
    return f"{first_lines}{lines}\r\n".encode()


def request_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Pick the headers that go on to the engine; bodies must return unchanged, so no compression."""
    forwarded = {name: headers[name] for name in FORWARDED_HEADERS if name in headers}
    if MARK in forwarded.get(REQUEST_ID_HEADER, ""):
        # Such an id is an identity, which only the gateway may give.
        del forwarded[REQUEST_ID_HEADER]
    return {"content-type": "application/json", **forwarded, "accept-encoding": "identity"}


def response_headers(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Pick the headers that go back to the client: those of the content, not of the connection.

    They stay bytes: the values of an engine need not be text.
    """
    return [(lowered, value) for name, value in headers if (lowered := name.lower()) not in _NOT_RETURNED]
