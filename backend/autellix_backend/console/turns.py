"""One long answer of a tenant at a time."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request

from autellix_backend.gateway.errors import ClientGoneError
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_backend.pauses import Pauses

PAUSE_RATIO = 3.0
"""The pause after a step of a long answer, in steps."""


class AnswerTurns:
    """Turns for answers that take long to make: many at once would hold up all connections."""

    def __init__(self) -> None:
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    @asynccontextmanager
    async def turn(self, tenant: Tenant, request: Request) -> AsyncIterator[Pauses]:
        """Wait for a tenant's turn.

        Raises:
            ClientGoneError: if the client has disconnected meanwhile.
        """
        # The first message is the request itself; a body would have no bound.
        await request.is_disconnected()
        async with self._locks[tenant.name]:
            if await request.is_disconnected():
                raise ClientGoneError
            yield Pauses(PAUSE_RATIO)
