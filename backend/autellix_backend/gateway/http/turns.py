"""Turns for answers that take long to make: one at a time for each tenant, and pauses for others' calls."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request

from autellix_backend.gateway.requests import ClientGoneError
from autellix_backend.gateway.tenancy.tenants import Tenant

MAX_PAUSE_S = 0.05
"""A piece of work is far shorter, unless the machine is busy or the work was waiting."""


class AnswerTurns:
    """Who makes a long answer: many at once, or one without pauses, would hold up all connections."""

    def __init__(self) -> None:
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    @asynccontextmanager
    async def turn(self, tenant: Tenant, request: Request) -> AsyncIterator[Pauses]:
        """Wait for a tenant's turn.

        Raises:
            ClientGoneError: if the client has left meanwhile.
        """
        # The first thing to come is the request itself; a body would have no bound.
        await request.is_disconnected()
        async with self._locks[tenant.name]:
            if await request.is_disconnected():
                raise ClientGoneError
            yield Pauses()


class Pauses:
    """Of one answer: they take as long as the work between them, so that it has half of the event loop."""

    def __init__(self) -> None:
        self._begun_s = time.perf_counter()

    async def pause(self) -> None:
        """Let others' calls go for as long as the last piece of work took."""
        await asyncio.sleep(min(MAX_PAUSE_S, time.perf_counter() - self._begun_s))
        self._begun_s = time.perf_counter()
