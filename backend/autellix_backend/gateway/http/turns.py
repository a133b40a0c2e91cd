"""Turns: whose request begins next, and for answers that take long to make, with pauses for others' calls."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request

from autellix_backend.gateway.requests import ClientGoneError
from autellix_backend.gateway.tenancy.tenants import Tenant

ROUND_REQUESTS = 4
"""Begin in one round of the event loop: with one, a call of many at once took a fifth more processor time."""
MAX_PAUSE_S = 0.05
"""A piece of work is far shorter, unless the machine is busy or the work was waiting."""


class RequestTurns:
    """Whose request begins: a few in each round of the event loop, of all tenants in turn.

    A round takes as long as all that is ready, and each request passes through several: those that one tenant
    sends at once, all begun at once, would add all their work to every step of the others' requests.
    """

    def __init__(self) -> None:
        self._left = ROUND_REQUESTS
        """How many may still begin in this round."""
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By tenant, in the order of their turns; the first to come first."""

    async def begin(self, tenant: str) -> None:
        """Wait until a request of a tenant may begin."""
        if self._left:
            self._take()
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        await turn

    def _take(self) -> None:
        if self._left == ROUND_REQUESTS:
            asyncio.get_running_loop().call_soon(self._begin_round)
        self._left -= 1

    def _begin_round(self) -> None:
        self._left = ROUND_REQUESTS
        while self._waiting and self._left:
            tenant = next(iter(self._waiting))
            turns = self._waiting.pop(tenant)
            turn = turns.popleft()
            if turns:
                self._waiting[tenant] = turns
            # Its client may have left.
            if not turn.done():
                turn.set_result(None)
                self._take()


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
