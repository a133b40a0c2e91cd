"""The scripts of the shared table, run by redis-py within a bounded time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from importlib import resources
from typing import Any, cast
from urllib.parse import urlsplit, urlunsplit

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.commands.core import AsyncScript
from redis.exceptions import RedisError

from autellix_backend.stores.base import StoreUnavailableError

MAX_CONNECTIONS = 16
"""Further operations wait for one of these: Redis runs one script at a time."""
SENTINEL = "redis+sentinel://"
NOT_MEMBER = "NOTMEMBER"
NO_EVICTION = "noeviction"
_SERVER_STATES = (
    *("OOM", "READONLY", "MISCONF", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "NOREPLICAS", "BUSY"),
    *("NOAUTH", "NOPERM", "NOSCRIPT"),
)
OPEN_SCRIPTS = ("join", "leave", "time")
"""Scripts that run without a lease."""

Argument = str | bytes | int | float


class NotMemberError(StoreUnavailableError):
    """The gateway is not in the table: its lease ended, or the table was lost."""


class ScriptFailedError(StoreUnavailableError):
    """A script failed on its arguments; the table itself is sound."""


class RedisScripts:
    """Runs scripts on the table of one prefix."""

    def __init__(self, url: str, *, key_prefix: str, timeout_s: float) -> None:
        """Read the address; the first script connects.

        Raises:
            ValueError: if the address cannot be read.
        """
        self.url = url
        self.tag = "{" + key_prefix + "}"
        self._timeout_s = timeout_s
        self._pool = _make_pool(url, timeout_s)
        self._client = Redis(connection_pool=self._pool)
        # redis-py's blocking pool serves those that wait in no order, some of them beyond the timeout.
        self._places = asyncio.Semaphore(MAX_CONNECTIONS)
        self._scripts: dict[str, AsyncScript] = {}

    async def run(self, name: str, *arguments: Argument) -> Any:
        """Run a script and return its answer.

        Raises:
            StoreUnavailableError: if it does not answer in time; the script may have run all the same.
            NotMemberError: if the script refused, because the gateway has no lease.
        """
        script = self._scripts.get(name)
        if script is None:
            script = self._scripts[name] = self._client.register_script(_text(name))
        async with self._bounded():
            return await script(keys=(self.tag,), args=arguments)

    async def ends(self, after: str, last: str, most: int) -> list[tuple[bytes, list[bytes]]]:
        """Return the first entries of the stream of ends behind one, up to a last one: ids and values.

        No script: each gateway reads every end, and a script takes eight times Redis's CPU time for an entry.

        Raises:
            StoreUnavailableError: if there is no answer in time.
        """
        async with self._bounded():
            entries: Any = await self._client.xrange(f"{self.tag}:ends", f"({after}", last, count=most)
        return [(event, list(fields.values())) for event, fields in entries]

    @contextlib.asynccontextmanager
    async def _bounded(self) -> AsyncIterator[None]:
        """Use a connection for a bounded time, and translate errors."""
        try:
            # Bounds everything: the wait for a connection, its opening, and a script that Redis has lost.
            async with asyncio.timeout(self._timeout_s), self._places:
                yield
        except TimeoutError:
            raise StoreUnavailableError(f"no answer within {self._timeout_s:g} s") from None
        except RedisError as error:
            raise _translated(str(error) or type(error).__name__) from error

    async def eviction(self) -> str | None:
        """Return the policy by which a full server removes keys; None if it removes none, or does not say."""
        memory: dict[str, Any] = {}
        # It may be forbidden.
        with contextlib.suppress(StoreUnavailableError):
            async with self._bounded():
                memory = await self._client.info("memory")
        policy = memory.get("maxmemory_policy", NO_EVICTION)
        return str(policy) if policy != NO_EVICTION and memory.get("maxmemory") else None

    async def disconnect(self) -> None:
        """Drop all connections, also those that look open; the next script opens another."""
        with contextlib.suppress(RedisError, OSError):
            await self._pool.disconnect()

    async def close(self) -> None:
        """Drop all connections and wait until they are closed."""
        await self.disconnect()
        if isinstance(self._pool, SentinelConnectionPool):
            for sentinel in self._pool.sentinel_manager.sentinels:
                await sentinel.aclose()


def _make_pool(url: str, timeout_s: float) -> ConnectionPool:
    options = {
        "max_connections": MAX_CONNECTIONS,
        "socket_connect_timeout": timeout_s,
        # The timeout of each script is that of its answer, too.
        "socket_timeout": None,
        # A second attempt of a start or an end would find that of the first.
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    }
    try:
        pool: Any = (_master_pool if url.startswith(SENTINEL) else ConnectionPool.from_url)(url, **options)
        # Options are read here.
        pool.make_connection()
    except (TypeError, RedisError) as error:
        raise ValueError(f"has an option that redis-py refuses: {error}") from error
    except ValueError:
        # Its words may show a password that is not percent-encoded.
        raise ValueError("has a port or an option that is no number") from None
    return cast(ConnectionPool, pool)


def _master_pool(url: str, **options: Any) -> SentinelConnectionPool:
    """Return connections to the master of `redis+sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT/SERVICE/DB`."""
    parts = urlsplit(url)
    credentials, at, hosts = parts.netloc.rpartition("@")
    service, _, database = parts.path.strip("/").partition("/")
    addresses = [(host, int(port)) for host, _, port in (each.rpartition(":") for each in hosts.split(","))]
    timeout_s = options["socket_connect_timeout"]
    make: Any = Sentinel
    sentinel = make(addresses, socket_connect_timeout=timeout_s, socket_timeout=timeout_s)
    master = urlunsplit(("redis", f"{credentials}{at}master", f"/{database}", parts.query, ""))
    pool: Any = SentinelConnectionPool.from_url(
        master, service_name=service, sentinel_manager=sentinel, **options
    )
    return cast(SentinelConnectionPool, pool)


def _text(name: str) -> str:
    """Return a script of this package, after the common parts."""
    folder = resources.files("autellix_backend.stores") / "scripts"
    parts = ("common", name) if name in OPEN_SCRIPTS else ("common", "member", name)
    return "\n".join((folder / f"{part}.lua").read_text(encoding="utf-8") for part in parts)


def _translated(text: str) -> StoreUnavailableError:
    # A server's state may also show inside a script.
    if not any(state in text for state in _SERVER_STATES):
        if NOT_MEMBER in text:
            return NotMemberError(text)
        if "script" in text:
            return ScriptFailedError(text)
    return StoreUnavailableError(text)
