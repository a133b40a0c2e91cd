"""The HTTP server of one gateway: uvicorn with our connections, and a shutdown that drains calls first."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Generator
from functools import partial
from typing import Literal, cast

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp

from autellix_backend.cli.announcements import note, note_reporting
from autellix_backend.gateway.engines.pool import EnginePool
from autellix_backend.gateway.http.acceptor import Acceptor
from autellix_backend.gateway.http.authentication import owner_of
from autellix_backend.gateway.http.connections import ConnectionTable, connection_limit
from autellix_backend.gateway.http.protocol import KEEP_ALIVE_S, bounded_protocol
from autellix_backend.gateway.http.rounds import Rounds
from autellix_backend.gateway.http.starting import starting_app
from autellix_backend.settings import GatewaySettings, SettingsError

BACKLOG = 2048
FLUSH_TIMEOUT_S = 1
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


def server_config(
    app: ASGIApp,
    table: ConnectionTable,
    rounds: Rounds | None = None,
    lifespan: Literal["on", "off"] = "on",
) -> uvicorn.Config:
    """Return uvicorn's configuration for one of our apps."""
    return uvicorn.Config(
        app,
        # A factory in place of a class: uvicorn only calls it.
        http=cast(type[asyncio.Protocol], bounded_protocol(table, rounds)),
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
        self, app: FastAPI, gateway: GatewaySettings, max_connections: int, on_ready: Callable[[], None]
    ) -> None:
        self._rounds = Rounds()
        self._table = ConnectionTable(max_connections)
        super().__init__(server_config(app, self._table, self._rounds))
        self._app = app
        self._on_ready = on_ready
        self._grace_s = gateway.shutdown_grace_s
        self._drain: asyncio.Task[None] | None = None
        self.is_cut_short = False
        """Whether a second signal ended it."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen with our own acceptors: uvicorn's server would accept one connection at a time."""
        await super().startup(sockets=[])
        if self.started:
            acceptors = [
                Acceptor(
                    listener,
                    self._make_protocol,
                    self._rounds,
                    self._table,
                    partial(owner_of, self._app.state.tenants),
                )
                for listener in sockets or ()
            ]
            self.servers = cast(list[asyncio.base_events.Server], acceptors)
            pool: EnginePool = self._app.state.pool
            await pool.links_settled(LINK_WAIT_S)
            for handle in pool:
                note_reporting(handle)
            pool.subscribe_links(note_reporting)
            self._on_ready()

    def _make_protocol(self, owner: str) -> asyncio.Protocol:
        # The class is our factory, which takes what uvicorn's own code gives it.
        make: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        state = self.lifespan.state
        return make(config=self.config, server_state=self.server_state, app_state=state, owner=owner)

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
        """Refuse new calls, while still listening, until the running ones end or the grace is over."""
        state = self._app.state
        state.pool.shut_down()
        if len(state.registry):
            note(f"waiting for {len(state.registry)} calls to end")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._grace_s):
                await state.registry.idle()
        self._exit()

    def _exit(self) -> None:
        self.should_exit = True
        self._app.state.watches.release()


@contextlib.asynccontextmanager
async def answering_meanwhile(listener: socket.socket, *, has_page: bool) -> AsyncIterator[None]:
    """Answer that the engines start while inside, on a copy of the listener, which stays open."""
    config = server_config(
        starting_app(has_page=has_page), ConnectionTable(connection_limit()), lifespan="off"
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    copies = [listener.dup()]
    await server.startup(copies)
    try:
        yield
    finally:
        await server.shutdown(copies)
