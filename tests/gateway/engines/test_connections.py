"""Connections to real sockets: kept for the next request, closed when idle, opened by name and with TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trustme
from tests.waiting import PATIENCE_S, until
from yarl import URL

from autellix_backend.gateway.engines import connections as module
from autellix_backend.gateway.engines.connections import EngineConnections, NoConnectionError

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


@pytest.fixture(params=[pytest.param(False, id="asyncio"), pytest.param(True, id="uvloop")])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Both event loops: the gateway serves with uvloop, whose transports differ."""
    return "asyncio", {"use_uvloop": request.param}


class Engine:
    """Answers requests without bodies, and counts its connections."""

    def __init__(self) -> None:
        self.port = 0
        self.opened = 0
        self.closed = 0
        self.writers: list[asyncio.StreamWriter] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        self.writers.append(writer)
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(ANSWER)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.closed += 1
        finally:
            writer.close()


@asynccontextmanager
async def engine(host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> AsyncIterator[Engine]:
    found = Engine()
    server = await asyncio.start_server(found.answer, host, 0, ssl=tls)
    found.port = server.sockets[0].getsockname()[1]
    async with server:
        yield found
        for writer in found.writers:
            writer.close()
        await until(lambda: found.closed == found.opened)


@asynccontextmanager
async def connections_to(found: Engine, host: str = "127.0.0.1", scheme: str = "http") -> AsyncIterator[Any]:
    connections = EngineConnections(URL(f"{scheme}://{host}:{found.port}"))
    try:
        yield connections
    finally:
        connections.close()


async def ask(connections: EngineConnections) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        connection = await connections.take()
        response = await connection.request(b"GET / HTTP/1.1\r\n\r\n", b"", PATIENCE_S)
        return await response.read_part() + await response.read_part()


async def test_a_connection_is_kept_for_the_next_request() -> None:
    async with engine() as found, connections_to(found) as connections:
        assert [await ask(connections) for _ in range(3)] == [b"{}"] * 3
        assert (found.opened, len(connections)) == (1, 1)


async def test_requests_at_once_have_connections_of_their_own() -> None:
    async with engine() as found, connections_to(found) as connections:
        assert await asyncio.gather(*(ask(connections) for _ in range(5))) == [b"{}"] * 5
        assert found.opened == 5
        assert await asyncio.gather(*(ask(connections) for _ in range(5))) == [b"{}"] * 5
        assert found.opened == 5


async def test_the_latest_is_used_first() -> None:
    async with engine() as found, connections_to(found) as connections:
        await asyncio.gather(ask(connections), ask(connections))
        first, second = connections._free
        assert await connections.take() is second
        assert await connections.take() is first


async def test_idle_ones_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEEPALIVE_S", 0.05)
    async with engine() as found, connections_to(found) as connections:
        await asyncio.gather(*(ask(connections) for _ in range(3)))
        await until(lambda: len(connections) == 0)
        await until(lambda: found.closed == 3)
        assert await ask(connections) == b"{}"
        assert found.opened == 4


async def test_one_that_has_waited_too_long_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with engine() as found, connections_to(found) as connections:
        await ask(connections)
        # As if the event loop had been held up before it could close it.
        monkeypatch.setattr(module, "KEEPALIVE_S", 0.0)
        await ask(connections)
        assert found.opened == 2


async def test_one_that_the_engine_has_closed_is_not_used() -> None:
    async with engine() as found, connections_to(found) as connections:
        await ask(connections)
        found.writers[0].close()
        await until(lambda: len(connections) == 0)
        assert await ask(connections) == b"{}"
        assert found.opened == 2


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
async def test_an_address_of_version_6() -> None:
    async with engine("::1") as found, connections_to(found, "[::1]") as connections:
        assert await ask(connections) == b"{}"


async def test_requests_leave_at_once() -> None:
    async with engine() as found, connections_to(found) as connections:
        connection = await connections.take()
        sock = connection._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_no_engine_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(NoConnectionError):
        await EngineConnections(URL(f"http://127.0.0.1:{port}")).take()


async def test_a_name_that_is_none() -> None:
    with pytest.raises(NoConnectionError):
        await EngineConnections(URL("http://engine.invalid:80")).take()


async def test_closing_ends_running_requests() -> None:
    async with engine() as found, connections_to(found) as connections:
        await ask(connections)
        connection = await connections.take()
        # Half a head: the engine waits for the rest.
        waiting = asyncio.create_task(connection.request(b"GET / HTTP/1.1\r\n", b"", PATIENCE_S))
        await asyncio.sleep(0)
        connections.close()
        with pytest.raises(ConnectionResetError, match="the gateway closed the connection"):
            await waiting
        with pytest.raises(NoConnectionError, match="shuts down"):
            await connections.take()


def look_up_as(ports: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let the engine's name lead to these ports; return the list of its look-ups."""
    loop, looked_up = asyncio.get_running_loop(), list[str]()
    look_up = loop.getaddrinfo

    async def look_up_name(host: str, port: int, **options: Any) -> list[Any]:
        if host != "engine.test":
            return await look_up(host, port, **options)
        looked_up.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", at)) for at in ports]

    monkeypatch.setattr(loop, "getaddrinfo", look_up_name)
    return looked_up


async def test_addresses_are_looked_up_again_after_a_while_or_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with engine() as found, connections_to(found, "engine.test") as connections:
        ports = [found.port]
        names = look_up_as(ports, monkeypatch)
        await asyncio.gather(ask(connections), ask(connections))
        await asyncio.gather(*(ask(connections) for _ in range(3)))
        assert names
        looked_up = len(names)
        await connections.take()
        await connections.take()
        await connections.take()
        assert len(names) == looked_up
        # It comes back at another address: the old one refuses.
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ports[0] = listener.getsockname()[1]
        connections._addresses_until_s = 0.0
        with pytest.raises(NoConnectionError):
            await connections.take()
        ports[0] = found.port
        assert await ask(connections) == b"{}"
        assert len(names) == looked_up + 2


async def test_the_next_address_is_tried_when_one_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with engine() as found, connections_to(found, "engine.test") as connections:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            refusing = listener.getsockname()[1]
        look_up_as([refusing, found.port], monkeypatch)
        assert await ask(connections) == b"{}"


@pytest.mark.parametrize("is_trusted", [True, False])
async def test_tls(is_trusted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    server_tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(server_tls)
    client_tls = ssl.create_default_context()
    if is_trusted:
        authority.configure_trust(client_tls)
    monkeypatch.setattr(module, "_tls_context", lambda: client_tls)
    async with engine(tls=server_tls) as found, connections_to(found, "localhost", "https") as connections:
        if is_trusted:
            assert [await ask(connections), await ask(connections)] == [b"{}", b"{}"]
            assert found.opened == 1
        else:
            with pytest.raises(NoConnectionError, match="certificate"):
                await connections.take()


async def test_a_certificate_for_another_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    server_tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("elsewhere.test").configure_cert(server_tls)
    client_tls = ssl.create_default_context()
    authority.configure_trust(client_tls)
    monkeypatch.setattr(module, "_tls_context", lambda: client_tls)
    async with engine(tls=server_tls) as found, connections_to(found, "localhost", "https") as connections:
        with pytest.raises(NoConnectionError, match="certificate"):
            await connections.take()


async def test_the_system_decides_whom_to_trust() -> None:
    context = module._tls_context()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
