"""Where a Redis is, as its URL says."""

from __future__ import annotations

import asyncio
from typing import Any

from redis.asyncio import ConnectionPool, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import RedisError


class RedisAddress:
    """An address to which connections are opened."""

    def __init__(self, url: str) -> None:
        """Read a URL; redis-py knows its parts and the options of TLS.

        Raises:
            ValueError: if it cannot be read.
        """
        try:
            pool: Any = ConnectionPool.from_url(url)
            self._parts = pool.make_connection()
        except (TypeError, RedisError) as error:
            raise ValueError(f"has an option that redis-py refuses: {error}") from error
        except ValueError:
            # Its words may show a password that is not percent-encoded.
            raise ValueError("has a port or an option that is no number") from None

    @property
    def greeting(self) -> list[tuple[str, ...]]:
        """The commands that come first on a connection."""
        commands: list[tuple[str, ...]] = []
        if self._parts.password:
            names = (self._parts.username,) if self._parts.username else ()
            commands.append(("AUTH", *names, self._parts.password))
        if self._parts.db:
            commands.append(("SELECT", str(self._parts.db)))
        return commands

    async def connect(self, protocol: asyncio.Protocol) -> None:
        """Open a connection, and give it to its protocol.

        Raises:
            OSError: if that is impossible.
            ValueError: if the host can be no name.
        """
        loop, parts = asyncio.get_running_loop(), self._parts
        if isinstance(parts, UnixDomainSocketConnection):
            await loop.create_unix_connection(lambda: protocol, parts.path)
            return
        tls = parts.ssl_context.get() if isinstance(parts, SSLConnection) else None
        await loop.create_connection(lambda: protocol, parts.host, parts.port, ssl=tls)
