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

SHARED_S = 1.0
"""How long after another's request a tenant is not yet alone."""
MAX_PAUSE_S = 0.05
"""A piece of work is far shorter, unless the machine is busy or the work was waiting."""


class RequestTurns:
    """Whose request begins: while several tenants are at work, one of each in a round of the event loop.

    A round takes as long as all that is ready, and each request passes through several: those that one tenant
    sends at once, all begun at once, would add all their work to every step of the others' requests. A tenant
    that is alone waits for no turn, since many short rounds cost a fifth more processor time per request.
    """

    def __init__(self) -> None:
        self._last = ""
        self._shared_until_s = 0.0
        """Of the event loop's clock; from then on the last tenant is alone."""
        self._begun: set[str] = set()
        """Tenants of whom a request begins in this round."""
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By tenant, each of them among those above, the first to come first."""

    async def begin(self, tenant: str) -> None:
        """Wait until a request of a tenant may begin."""
        loop = asyncio.get_running_loop()
        if tenant != self._last:
            self._last, self._shared_until_s = tenant, loop.time() + SHARED_S
        elif not self._waiting and loop.time() > self._shared_until_s:
            return
        if tenant in self._begun:
            turn = loop.create_future()
            self._waiting.setdefault(tenant, deque()).append(turn)
            await turn
            return
        if not self._begun:
            loop.call_soon(self._begin_round)
        self._begun.add(tenant)

    def _begin_round(self) -> None:
        self._begun = {tenant for tenant, turns in self._waiting.items() if _begin_first(turns)}
        self._waiting = {tenant: turns for tenant, turns in self._waiting.items() if turns}
        if self._begun:
            asyncio.get_running_loop().call_soon(self._begin_round)


def _begin_first(turns: deque[asyncio.Future[None]]) -> bool:
    """Let the first begin whose client has not left; return whether there was one."""
    while turns:
        turn = turns.popleft()
        if not turn.done():
            turn.set_result(None)
            return True
    return False


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
