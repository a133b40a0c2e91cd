"""The way that the requests of a user's httpx client take: certificates, proxy, unix socket.

The sessions API is asked by the same way, with connections of our own: an async client's belong to its event
loop, and any client's end with it. They are made below httpx, whose log and hooks are the user's.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TRANSPORTS = ("HTTPTransport", "AsyncHTTPTransport")
ARGUMENTS = {
    "ConnectionPool": ("ssl_context", "http1", "http2", "uds", "local_address", "proxy"),
    "HTTPProxy": ("ssl_context", "http1", "http2", "proxy_url", "proxy_headers", "proxy_ssl_context"),
    "SOCKSProxy": ("ssl_context", "http1", "http2", "proxy_url", "proxy_auth"),
}
"""What makes a way: the arguments of httpcore's pools, by their names."""
MAX_ANSWER_BYTES = 65536


class Route:
    """One way to a backend."""

    def __init__(self, make: Any, arguments: dict[str, Any]) -> None:
        self._make = make
        self._arguments = arguments
        self._pool: Any = None
        self._process_id = 0

    def request(
        self, method: str, url: str, headers: dict[str, str], body: bytes | None, limit_s: float
    ) -> tuple[int, bytes]:
        """Send a request, and return status and body.

        Raises:
            Exception: whatever the connection raises, or TimeoutError if the body is late.
        """
        if self._pool is None or self._process_id != os.getpid():
            # A forked child leaves its parent's connection alone.
            self._process_id = os.getpid()
            self._pool = self._make(**self._arguments, max_connections=1)
        deadline_s = time.monotonic() + limit_s
        limits = {"timeout": dict.fromkeys(("connect", "read", "write", "pool"), limit_s)}
        with self._pool.stream(method, url, headers=headers, content=body, extensions=limits) as response:
            content = b""
            for part in response.iter_stream():
                content += part
                if len(content) > MAX_ANSWER_BYTES or time.monotonic() > deadline_s:
                    raise TimeoutError("the answer is too long")
            return response.status, content

    def close(self) -> None:
        """Close its connection; the next request opens another."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()


def route_of(client: Any, url: Any) -> Route | None:
    """Return the way by which an httpx client sends requests to a URL.

    None for a transport that is not httpx's own, or that a test has replaced: nothing of ours may go where
    the call does not.
    """
    transport = client._transport_for_url(url)
    package, name = _place(type(transport))
    if package not in ("httpx", "httpx2") or name not in TRANSPORTS:
        return None
    pool = transport._pool
    core, name = _place(type(pool))
    if not (_is_own(transport, package) and _is_own(pool, core)):
        return None
    name = name.removeprefix("Async")
    arguments = {argument: getattr(pool, f"_{argument}", None) for argument in ARGUMENTS[name]}
    return Route(
        getattr(sys.modules[core], name),
        {argument: value for argument, value in arguments.items() if value is not None},
    )


def socket_of(client: Any) -> str | None:
    """Return the path of the unix socket that an httpx client calls, if it does."""
    pool = getattr(getattr(client, "_transport", None), "_pool", None)
    path = getattr(pool, "_uds", None)
    return path if isinstance(path, str) else None


def _place(kind: type) -> tuple[str, str]:
    return kind.__module__.partition(".")[0], kind.__name__


def _is_own(sender: Any, package: str) -> bool:
    """Return whether a transport or a pool sends requests by its own method."""
    name = "handle_request" if hasattr(sender, "handle_request") else "handle_async_request"
    return str(getattr(getattr(sender, name), "__module__", "")).partition(".")[0] == package
