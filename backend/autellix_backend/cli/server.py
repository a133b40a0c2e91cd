"""The HTTP server of one gateway: uvicorn, and a shutdown that drains calls first."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import socket
from collections.abc import AsyncIterator, Callable, Generator
from typing import Literal

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp

from autellix_backend.cli.announcements import note_models, note_reporting
from autellix_backend.cli.connections import MAX_HEAD_BYTES, ClientConnection
from autellix_backend.cli.notes import note
from autellix_backend.gateway.engines.pool import EnginePool
from autellix_backend.gateway.http.authentication import MAX_REQUESTS
from autellix_backend.gateway.http.starting import StartingPage, starting_app
from autellix_backend.gateway.wiring import Gateway
from autellix_backend.settings import GatewaySettings, SettingsError

BACKLOG = 2048
KEEP_ALIVE_S = 75
"""How long a connection may be idle, or without a head: longer than clients keep theirs, or a call would meet
its end."""
RESERVED_FILES = 64
"""File descriptors for everything but the connections of clients and to engines."""
FLUSH_TIMEOUT_S = 1
HAND_OVER_S = 5.0
"""How long a gateway that ends takes calls on kept connections: clients keep idle ones for less."""
CLOSE = (b"connection", b"close")
LINK_WAIT_S = 2.0
"""How long running engines have to show what they report, before the ready line."""


def resolve(gateway: GatewaySettings) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """Return the address to listen on.

    Raises:
        SettingsError: if the host is unknown.
    """
    try:
        found = socket.getaddrinfo(gateway.host, gateway.port, type=socket.SOCK_STREAM)
    except socket.gaierror:
        problem = f"{gateway.host!r} is unknown"
        raise SettingsError("gateway.host", problem, "an address of this host") from None
    family, _, _, _, (host, port, *_) = found[0]
    return family, (str(host), int(port))


def bind(gateway: GatewaySettings) -> socket.socket:
    """Bind the address before the slow start of the engine, so that a taken port shows at once.

    Raises:
        SettingsError: if the host is unknown or the port is taken.
    """
    family, address = resolve(gateway)
    try:
        return socket.create_server(address, family=family, backlog=BACKLOG)
    except OSError as error:
        problem = f"cannot listen on {gateway.host}:{gateway.port} ({os.strerror(error.errno or 0)})"
        raise SettingsError("gateway.port", problem, "a free port, or 0 for any") from error


def connection_limit() -> int:
    """Raise the limit of open files as far as allowed; return how many connections of clients it allows.

    Half of the files are for connections to engines: each call may need one.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * MAX_REQUESTS + RESERVED_FILES
    files = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    return max(1, (files - RESERVED_FILES) // 2)


def freeze_heap() -> None:
    """Exclude the objects of the start from garbage collections, and make fewer of these.

    With Python's defaults they take a tenth of the CPU time under load.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)


def server_config(
    app: ASGIApp,
    max_connections: int | None = None,
    lifespan: Literal["on", "off"] = "on",
) -> uvicorn.Config:
    """Return uvicorn's configuration for one of our apps."""
    return uvicorn.Config(
        app,
        http=ClientConnection,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        limit_concurrency=max_connections,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        ws="none",
        lifespan=lifespan,
        # Its warnings are about what clients send, a line for each request: a flood would fill the disk.
        log_level="error",
        access_log=False,
        # The drain is over; what is left are answers on their way out.
        timeout_graceful_shutdown=FLUSH_TIMEOUT_S,
    )


class GatewayServer(uvicorn.Server):
    """Uvicorn without its own signal handling, which ends the process before the engine is stopped."""

    def __init__(
        self,
        app: FastAPI,
        gateway: GatewaySettings,
        max_connections: int,
        on_ready: Callable[[], None],
        *,
        has_others: bool = False,
    ) -> None:
        """Prepare a server of one gateway; `has_others` if further ones share its programs."""
        super().__init__(server_config(app, max_connections))
        self._app = app
        self._on_ready = on_ready
        self._grace_s = gateway.shutdown_grace_s
        self._has_others = has_others
        self._drain: asyncio.Task[None] | None = None
        self.is_cut_short = False
        """Whether a second signal ended it."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and call `on_ready` once the engines have shown what they report."""
        await super().startup(sockets)
        if self.started:
            pool: EnginePool = self._app.state.gateway.pool
            await pool.links_settled(LINK_WAIT_S)
            for handle in pool:
                note_reporting(handle)
            note_models(pool)
            pool.subscribe_links(note_reporting)
            self._on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave signals to the command."""
        yield

    def end(self) -> None:
        """Drain at the first signal, cut that short at the second, exit at once at the third."""
        if self._drain is None:
            self._drain = asyncio.create_task(self._drain_calls())
            return
        self.is_cut_short = True
        self.force_exit = self.should_exit
        self._exit()

    async def _drain_calls(self) -> None:
        """Take no more calls, and return once the open ones have ended or the grace is over.

        A gateway that has others leaves new calls to them. One that is alone refuses them, and says so.
        """
        gateway: Gateway = self._app.state.gateway
        if not self._has_others:
            gateway.pool.shut_down()
        if len(gateway.registry):
            note(
                f"waiting for {len(gateway.registry)} calls to end, {self._grace_s:g} s at most; "
                "a second signal ends them"
            )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._grace_s):
                if self._has_others:
                    await self._hand_over()
                await gateway.registry.idle()
        gateway.pool.shut_down()
        self._exit()

    async def _hand_over(self) -> None:
        """Accept no connection, so that a proxy tries another gateway, and have the kept ones closed.

        To close an idle one could break a call that is on its way: each ends with its next answer instead, or
        is given up by its client. Only those that are kept for longer are closed here.
        """
        for server in self.servers:
            server.close()
        self.config.encoded_headers.append(CLOSE)
        self.server_state.default_headers = [*self.server_state.default_headers, CLOSE]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HAND_OVER_S):
                while self.server_state.connections:  # noqa: ASYNC110 - uvicorn has no event for it
                    await asyncio.sleep(0.05)
        for connection in list(self.server_state.connections):
            connection.shutdown()

    def _exit(self) -> None:
        self.should_exit = True
        self._app.state.gateway.closing.set()


@contextlib.asynccontextmanager
async def answering_meanwhile(listener: socket.socket, page: StartingPage | None) -> AsyncIterator[None]:
    """Answer that the engines start while inside, on a copy of the listener, which stays open."""
    config = server_config(starting_app(page), lifespan="off")
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    copies = [listener.dup()]
    await server.startup(copies)
    try:
        yield
    finally:
        await server.shutdown(copies)
