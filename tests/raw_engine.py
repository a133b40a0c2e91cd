"""An engine that answers calls with any bytes, and its health as a server should."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Sequence

OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
PAUSE_S = 0.02
"""Between two parts, so that they come apart."""


def whole(body: bytes, head: bytes = OK) -> bytes:
    """Return an answer with its length."""
    return head + f"content-length: {len(body)}\r\n\r\n".encode() + body


def chunk(data: bytes) -> bytes:
    """Return one chunk of a body."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def reset_on_close(transport: asyncio.BaseTransport) -> None:
    """Have a connection reset once it is closed."""
    transport.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
    )


class RawEngine:
    """Answers every POST with `parts`, and then ends the connection unless it is to stay."""

    def __init__(self) -> None:
        self.parts: Sequence[bytes] = ()
        self.later_parts: list[Sequence[bytes]] = []
        """What takes the place of `parts` after each answer."""
        self.stays = False
        self.resets = False
        """Whether it ends connections hard, as a system does that has data nobody read."""
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.requests = 0
        self.url = ""
        self._connections: set[asyncio.Task[None]] = set()

    def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection's requests, in a task of their own."""
        task = asyncio.create_task(self._answer(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    @property
    def open_connections(self) -> int:
        """Connections that have not ended."""
        return len(self._connections)

    async def close(self) -> None:
        """End what connections are left, and wait until they are closed."""
        left = list(self._connections)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer_all(reader, writer)
        finally:
            if self.resets:
                reset_on_close(writer.transport)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if not head.startswith(b"POST"):
                    writer.write(whole(b"{}"))
                    continue
                await reader.readexactly(_length(head))
                self.requests += 1
                await self._send(writer)
                if not self.stays:
                    break

    async def _send(self, writer: asyncio.StreamWriter) -> None:
        await self.may_answer.wait()
        parts = self.parts
        if self.later_parts:
            self.parts = self.later_parts.pop(0)
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(PAUSE_S)


@contextlib.asynccontextmanager
async def raw_engine() -> AsyncIterator[RawEngine]:
    """Serve such an engine on the loopback address."""
    engine = RawEngine()
    server = await asyncio.start_server(engine.connect, "127.0.0.1", 0, limit=2**22)
    engine.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield engine
        await engine.close()


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0
