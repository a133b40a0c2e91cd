"""Fairness between tenants: whose request starts next."""

from __future__ import annotations

import asyncio
from collections import deque


class FairStart:
    """Starts at most one request of each tenant in an iteration of the event loop.

    An iteration takes as long as everything that is ready, and each request passes through several: if one
    tenant's crowd of requests started at once, it would delay every step of the others' requests.
    """

    def __init__(self) -> None:
        self._started: set[str] = set()
        """Tenants with a request that starts in this iteration."""
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Requests that wait, by tenant, in order of arrival; their tenants are in `_started`."""

    async def wait(self, tenant: str) -> None:
        """Wait until a request of a tenant may start."""
        loop = asyncio.get_running_loop()
        if tenant in self._started:
            start = loop.create_future()
            self._waiting.setdefault(tenant, deque()).append(start)
            await start
            return
        if not self._started:
            loop.call_soon(self._next_iteration)
        self._started.add(tenant)

    def _next_iteration(self) -> None:
        self._started = {tenant for tenant, starts in self._waiting.items() if _start_first(starts)}
        self._waiting = {tenant: starts for tenant, starts in self._waiting.items() if starts}
        if self._started:
            asyncio.get_running_loop().call_soon(self._next_iteration)


def _start_first(starts: deque[asyncio.Future[None]]) -> bool:
    """Start the first request that was not cancelled; return whether there was one."""
    while starts:
        start = starts.popleft()
        if not start.done():
            start.set_result(None)
            return True
    return False
