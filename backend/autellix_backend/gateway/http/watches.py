"""Requests that clients keep open: when one disconnects, the client's process is gone."""

from __future__ import annotations

import asyncio

from starlette.types import Receive

from autellix_backend.gateway.requests import disconnected


class Watches:
    """The open watches. A shutdown releases them, because it would wait for them otherwise."""

    def __init__(self) -> None:
        self._released = asyncio.Event()

    def release(self) -> None:
        """End every watch, now and from now on."""
        self._released.set()

    async def until_gone(self, receive: Receive) -> bool:
        """Wait until the client disconnects or watches are released; return whether it disconnected."""
        gone = asyncio.create_task(disconnected(receive))
        released = asyncio.create_task(self._released.wait())
        try:
            await asyncio.wait((gone, released), return_when=asyncio.FIRST_COMPLETED)
            return gone.done()
        finally:
            gone.cancel()
            released.cancel()
