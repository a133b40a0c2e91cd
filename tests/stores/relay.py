"""A line to a server that a test can cut, or make deaf."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Relay:
    """Passes bytes between clients and one server."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._is_cut = False
        self._is_deaf = False
        self._loses_answers = False
        self._writers: set[asyncio.StreamWriter] = set()
        self.url = ""

    def cut(self) -> None:
        """Break every connection, and refuse further ones."""
        self._is_cut = True
        for writer in self._writers:
            writer.transport.abort()

    def deafen(self) -> None:
        """Go on passing what clients send, and nothing of what they are answered."""
        self._is_deaf = True

    def lose_answers(self) -> None:
        """Go on passing what clients send, and break a connection at its next answer."""
        self._loses_answers = True

    def mend(self) -> None:
        """Work again."""
        self._is_cut = self._is_deaf = self._loses_answers = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass the bytes of one connection."""
        if self._is_cut:
            writer.transport.abort()
            return
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._server_port)
        except OSError:
            writer.transport.abort()
            return
        mine = {writer, back}
        self._writers |= mine
        try:
            await asyncio.gather(self._pass(reader, back), self._pass(there, writer, is_answer=True))
        finally:
            self._writers -= mine

    async def _pass(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, is_answer: bool = False
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                if is_answer and self._loses_answers:
                    target.transport.abort()
                elif not (is_answer and self._is_deaf):
                    target.write(data)
        target.close()


@asynccontextmanager
async def relaying(server_port: int) -> AsyncIterator[Relay]:
    """Yield a relay before a server."""
    relay = Relay(server_port)
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
    relay.url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield relay
    finally:
        server.close()
        relay.cut()
        # The connections' tasks end by themselves.
        await asyncio.sleep(0)
