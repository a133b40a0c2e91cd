"""A gateway on a free port, for tests of whatever talks to one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn
from tests.fakes.engine import FakeEngine
from tests.waiting import PATIENCE_S, until

from autellix_backend.cli.server import server_config

SHUTDOWN_S = 2


class PromptServer(uvicorn.Server):
    """Uvicorn's server, ending at once: its own looks every 100 ms whether something is over."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._end = asyncio.Event()

    def end(self) -> None:
        """Stop serving."""
        self.should_exit = True
        self._end.set()

    async def main_loop(self) -> None:
        """Keep the headers' date, until the end."""
        ticks = 0
        while not await self.on_tick(ticks):
            ticks += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await self._end.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the connections and wait for them and for requests, as uvicorn does."""
        assert sockets is None, "a server of the tests opens its own socket"
        for server in self.servers:
            server.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while state.connections or state.tasks:  # noqa: ASYNC110 - uvicorn has no event for it
                    await asyncio.sleep(0.002)
                for server in self.servers:
                    await server.wait_closed()
        except TimeoutError:
            for task in state.tasks:
                task.cancel()
        await self.lifespan.shutdown()


@asynccontextmanager
async def listening(app: Any, *, max_connections: int | None = None) -> AsyncIterator[str]:
    """Serve an ASGI app in the running event loop, as `autellix serve` does; yield its address."""
    config = server_config(app, max_connections)
    config.port, config.timeout_graceful_shutdown = 0, SHUTDOWN_S
    server = PromptServer(config)
    task = asyncio.create_task(server.serve())
    await until(lambda: server.started or task.done())
    gateway = getattr(getattr(app, "state", None), "gateway", None)
    if gateway is not None:
        await gateway.pool.links_settled(PATIENCE_S)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        if gateway is not None:
            gateway.closing.set()
        server.end()
        await task


@contextmanager
def serving_thread(app: Any, engine: FakeEngine | None = None) -> Iterator[str]:
    """Serve an app, and a fake engine behind it, in a thread of its own; yield its address."""
    addresses: list[str] = []
    end = threading.Event()

    async def serve() -> None:
        if engine is not None:
            await engine.start()
        try:
            async with listening(app) as url:
                addresses.append(url)
                while not end.is_set():  # noqa: ASYNC110 - the event is another thread's
                    await asyncio.sleep(0.01)
        finally:
            if engine is not None:
                await engine.stop()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), name="test-gateway")
    thread.start()
    deadline = time.monotonic() + PATIENCE_S
    while not addresses:
        assert thread.is_alive(), "the server did not start"
        assert time.monotonic() < deadline, "the server did not start in time"
        time.sleep(0.005)
    try:
        yield addresses[0]
    finally:
        end.set()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
