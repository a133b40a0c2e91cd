"""Requests that clients leave open: the end of one says that its process is gone, however it ended."""

from __future__ import annotations

import asyncio

from starlette.types import Receive


class Watches:
    """The watches in force; the server's end releases them, or it would wait for them."""

    def __init__(self) -> None:
        self._released = asyncio.Event()

    def release(self) -> None:
        """Let every watch end, now and from now on."""
        self._released.set()

    async def until_gone(self, receive: Receive) -> bool:
        """Wait; tell whether the client went away."""
        gone = asyncio.create_task(disconnected(receive))
        released = asyncio.create_task(self._released.wait())
        try:
            await asyncio.wait((gone, released), return_when=asyncio.FIRST_COMPLETED)
            return gone.done()
        finally:
            gone.cancel()
            released.cancel()


async def disconnected(receive: Receive) -> None:
    """Return once the client of a request has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass
