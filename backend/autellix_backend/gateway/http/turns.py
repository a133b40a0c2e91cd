"""Turns: whose request begins next, and for answers that take long to make, with pauses for others' calls."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from starlette.requests import Request
from starlette.types import Scope

from autellix_backend.gateway.http.protocol import has_left
from autellix_backend.gateway.http.rounds import Solitude
from autellix_backend.gateway.requests import ClientGoneError
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_backend.pauses import Pauses

TURN_ROUNDS = 6
"""Rounds of the event loop for each request that a tenant begins; a call passes through as many."""
LONG_ROUND_S = 0.0007
"""A round that takes longer counts as several for a tenant none of whose requests waits: one tenant's crowd,
which makes the rounds long, costs the others no turns."""
BURST = 2
"""Requests that a tenant begins at once after a while without any."""
MAX_LEFT = 8
"""Requests that end in a round because their clients left, before the next one that begins."""


class RequestTurns:
    """Whose request begins: while several tenants are at work, one of each in a few rounds of the event loop.

    A round takes as long as all that is ready, and each request passes through several: all that one tenant
    sends at once, begun at once, would add its work to every step of the others' requests. A tenant that is
    alone waits for no turn, since many short rounds cost a fifth more processor time per request.
    """

    def __init__(self) -> None:
        self._solitude = Solitude()
        self._owed: dict[str, float] = {}
        """By tenant, the rounds that pass before it has its whole burst again."""
        self._began_s = 0.0
        """When the latest of these rounds began."""
        self._waiting: dict[str, deque[_Turn]] = {}
        """By tenant, each of them among those above, the first to come first."""

    async def begin(self, tenant: str, scope: Scope) -> bool:
        """Wait until a request of a tenant may begin; return False if its client has left meanwhile."""
        loop = asyncio.get_running_loop()
        if self._solitude.is_alone(tenant, loop.time()) and not self._waiting:
            return True
        if self._has_burst(tenant):
            if not self._owed:
                self._began_s = loop.time()
                loop.call_soon(self._begin_round)
            self._owed[tenant] = self._owed.get(tenant, 0) + TURN_ROUNDS
            return True
        turn = _Turn(scope, loop.create_future())
        self._waiting.setdefault(tenant, deque()).append(turn)
        return await turn.begins

    def _has_burst(self, tenant: str) -> bool:
        return self._owed.get(tenant, 0) <= (BURST - 1) * TURN_ROUNDS

    def _begin_round(self) -> None:
        loop = asyncio.get_running_loop()
        last_s, self._began_s = self._began_s, loop.time()
        passed = max(1.0, (self._began_s - last_s) / LONG_ROUND_S)
        for tenant, rounds in list(self._owed.items()):
            self._owed[tenant] = max(0.0, rounds - (1.0 if tenant in self._waiting else passed))
            if self._has_burst(tenant) and _begin_first(self._waiting.get(tenant, deque())):
                self._owed[tenant] += TURN_ROUNDS
            elif not self._owed[tenant] and tenant not in self._waiting:
                del self._owed[tenant]
        self._waiting = {tenant: turns for tenant, turns in self._waiting.items() if turns}
        if self._owed:
            loop.call_soon(self._begin_round)


class _Turn(NamedTuple):
    scope: Scope
    """Of the request."""
    begins: asyncio.Future[bool]


def _begin_first(turns: deque[_Turn]) -> bool:
    """Let the first begin whose client has not left, among so many; return whether there was one."""
    for _ in range(min(MAX_LEFT, len(turns))):
        turn = turns.popleft()
        if turn.begins.done():
            continue
        is_there = not has_left(turn.scope)
        turn.begins.set_result(is_there)
        if is_there:
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
