"""The connections to one engine: opened when a request needs one, kept for the next, closed when idle."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import aiohappyeyeballs
from yarl import URL

from autellix_backend.gateway.engines.connection import EngineConnection

KEEPALIVE_S = 2.0
"""How long one may wait for a request: less than vLLM's 5 s, so that the gateway never writes to a connection
that the engine is closing."""
CONNECT_TIMEOUT_S = 5.0
"""Within a data centre connecting takes milliseconds; a longer wait would only delay the retry elsewhere."""
ADDRESSES_S = 10.0
"""How long the addresses of a host's name are used."""
NEXT_ADDRESS_S = 0.25
"""How long after the beginning of one attempt to connect the host's next address is tried (RFC 8305)."""


class NoConnectionError(OSError):
    """No connection could be opened."""


class EngineConnections:
    """Those of one owner to one address."""

    def __init__(self, url: URL) -> None:
        """Create it without connections; of the address only scheme, host and port count."""
        self._url = url
        self._free: dict[EngineConnection, None] = {}
        """Those that wait for a request, the one that has waited longest first."""
        self._open: set[EngineConnection] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._addresses: Sequence[Any] = ()
        self._addresses_until_s = 0.0
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._open)

    async def take(self) -> EngineConnection:
        """Return a connection for one request, which has to use it at once.

        Raises:
            NoConnectionError: if none can be opened.
        """
        now_s = asyncio.get_running_loop().time()
        while self._free:
            # The latest: the others may be closed soon.
            connection, _ = self._free.popitem()
            if not connection.is_closing and now_s - connection.free_since_s < KEEPALIVE_S:
                return connection
            connection.close()
        return await self._connect()

    def close(self) -> None:
        """End all connections, those of running requests too."""
        self._is_closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self._open):
            connection.close()

    async def _connect(self) -> EngineConnection:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                connection = await self._open_one()
        except OSError as error:
            # The name may lead elsewhere by now.
            self._addresses_until_s = 0.0
            is_late = isinstance(error, TimeoutError)
            raise NoConnectionError(
                f"no connection within {CONNECT_TIMEOUT_S:g} s" if is_late else str(error)
            ) from error
        if self._is_closed:
            connection.close()
            raise NoConnectionError("the gateway shuts down")
        self._open.add(connection)
        return connection

    async def _open_one(self) -> EngineConnection:
        loop = asyncio.get_running_loop()
        sock = await aiohappyeyeballs.start_connection(
            await self._resolve(), happy_eyeballs_delay=NEXT_ADDRESS_S, interleave=1, loop=loop
        )
        tls: dict[str, Any] = {}
        if self._url.scheme == "https":
            tls = {"ssl": _tls_context(), "server_hostname": self._url.raw_host}
        try:
            _, connection = await loop.create_connection(
                lambda: EngineConnection(on_free=self._on_free, on_lost=self._on_lost), sock=sock, **tls
            )
        except BaseException:
            sock.close()
            raise
        return connection

    async def _resolve(self) -> Sequence[Any]:
        loop = asyncio.get_running_loop()
        if loop.time() >= self._addresses_until_s:
            assert self._url.raw_host is not None
            self._addresses = await loop.getaddrinfo(
                self._url.raw_host, self._url.port, type=socket.SOCK_STREAM
            )
            self._addresses_until_s = loop.time() + ADDRESSES_S
        return self._addresses

    def _on_free(self, connection: EngineConnection) -> None:
        self._free[connection] = None
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(KEEPALIVE_S, self._close_idle)

    def _on_lost(self, connection: EngineConnection) -> None:
        self._open.discard(connection)
        self._free.pop(connection, None)

    def _close_idle(self) -> None:
        """Close those that have waited too long."""
        loop = asyncio.get_running_loop()
        for connection in list(self._free):
            left_s = connection.free_since_s + KEEPALIVE_S - loop.time()
            if left_s > 0:
                self._sweep = loop.call_later(left_s, self._close_idle)
                return
            del self._free[connection]
            connection.close()
        self._sweep = None


@lru_cache(1)
def _tls_context() -> ssl.SSLContext:
    return ssl.create_default_context()
