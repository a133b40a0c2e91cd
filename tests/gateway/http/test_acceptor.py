"""Many connections at once, clients that left, and no file descriptor left."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import uvloop
from tests.waiting import PATIENCE_S

from autellix_backend.gateway.http import acceptor, rounds
from autellix_backend.gateway.http.acceptor import Acceptor
from autellix_backend.gateway.http.connections import MAX_CONNECTIONS, ConnectionTable, Evictable
from autellix_backend.gateway.http.rounds import Rounds

CLIENTS = 100


@contextmanager
def connected(
    listener: socket.socket, count: int, source: str = "127.0.0.1", first: bytes = b"GET "
) -> Iterator[list[socket.socket]]:
    """Connect clients from an address, which takes no accepting, and send first bytes."""
    with contextlib.ExitStack() as stack:
        address = listener.getsockname()
        clients = [
            stack.enter_context(socket.create_connection(address, PATIENCE_S, (source, 0)))
            for _ in range(count)
        ]
        for client in clients:
            client.sendall(first)
        yield clients


def accept_at(
    listener: socket.socket,
    make_protocol: Callable[[str], asyncio.BaseProtocol],
    *,
    table: ConnectionTable | None = None,
    is_shared: bool = False,
) -> Acceptor:
    """Accept at a socket; owners are what the first bytes have before a colon."""
    return Acceptor(
        listener,
        make_protocol,
        Rounds(),
        table or ConnectionTable(MAX_CONNECTIONS),
        lambda first: first.decode().rpartition(":")[0],
        is_shared=is_shared,
    )


class ScarceListener(socket.socket):
    """Has errors first, and then connections."""

    errors: list[int]

    def accept(self) -> tuple[socket.socket, object]:
        if self.errors:
            number = self.errors.pop(0)
            raise OSError(number, os.strerror(number))
        return super().accept()


class MadeProtocol(asyncio.Protocol):
    """Sets an event when its connection is made, and closes it."""

    def __init__(self, made: asyncio.Event) -> None:
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._made.set()
        assert isinstance(transport, asyncio.Transport)
        transport.close()


@dataclass
class Opened:
    """Connections that were opened: in which round of the event loop, and for which address."""

    rounds: Counter[int] = field(default_factory=Counter)
    addresses: list[str] = field(default_factory=list)
    owners: list[str] = field(default_factory=list)


def open_all(listener: socket.socket, count: int) -> Opened:
    """Open the connections that wait at a socket, on uvloop, until so many are open."""
    opened = Opened()
    number = 0

    class NotingProtocol(asyncio.Protocol):
        def __init__(self, owner: str) -> None:
            opened.owners.append(owner)

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            opened.rounds[number] += 1
            opened.addresses.append(transport.get_extra_info("peername")[0])
            transport.close()

    async def play() -> None:
        nonlocal number
        accepting = accept_at(listener, NotingProtocol)
        async with asyncio.timeout(PATIENCE_S):
            while len(opened.addresses) < count:
                number += 1
                await asyncio.sleep(0)
        accepting.close()
        await accepting.wait_closed()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(play())
    return opened


def test_a_round_accepts_several_connections_but_not_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """One in a round delays everyone's new connections by a flood's, all delay everyone's requests."""
    # A round that other processes make long would open its share of it, which may be all.
    monkeypatch.setattr(rounds, "SHARE", 0.0)
    with (
        socket.create_server(("127.0.0.1", 0), backlog=2 * CLIENTS) as listener,
        connected(listener, CLIENTS + 1),
    ):
        opened = open_all(listener, CLIENTS + 1)
    assert 1 < max(opened.rounds.values()) <= acceptor.ROUND_CONNECTIONS


@pytest.fixture
def accepts_all_and_opens_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept all connections in the first round, and open one of each owner in a round."""
    monkeypatch.setattr(rounds, "ROUND_S", 1e-9)
    monkeypatch.setattr(rounds, "SHARE", 0.0)
    monkeypatch.setattr(rounds, "RENEWAL_S", PATIENCE_S)
    monkeypatch.setattr(acceptor, "ROUND_CONNECTIONS", 4 * CLIENTS)
    monkeypatch.setattr(acceptor, "ACCEPT_S", PATIENCE_S)


@pytest.mark.usefixtures("accepts_all_and_opens_few")
def test_a_connection_does_not_wait_for_all_of_another_address() -> None:
    with (
        socket.create_server(("127.0.0.1", 0), backlog=2 * CLIENTS) as listener,
        connected(listener, CLIENTS),
        connected(listener, 1, "127.0.0.2"),
    ):
        opened = open_all(listener, CLIENTS + 1)
    assert opened.addresses.index("127.0.0.2") <= 2


@pytest.mark.usefixtures("accepts_all_and_opens_few")
def test_a_connection_does_not_wait_for_all_of_another_key_at_its_address() -> None:
    """Behind one proxy all have one address."""
    with (
        socket.create_server(("127.0.0.1", 0), backlog=4 * CLIENTS) as listener,
        connected(listener, CLIENTS, first=b"hostile:"),
        connected(listener, CLIENTS),
        connected(listener, 1, first=b"quiet:"),
    ):
        opened = open_all(listener, 2 * CLIENTS + 1)
    assert opened.owners.index("quiet") <= 3
    assert Counter(opened.owners) == {"hostile": CLIENTS, "127.0.0.1": CLIENTS, "quiet": 1}


@pytest.mark.usefixtures("accepts_all_and_opens_few")
def test_silent_connections_delay_no_other() -> None:
    with (
        socket.create_server(("127.0.0.1", 0), backlog=2 * CLIENTS) as listener,
        connected(listener, CLIENTS, first=b""),
        connected(listener, 1, first=b"quiet:"),
    ):
        opened = open_all(listener, 1)
    assert opened.owners == ["quiet"]


async def test_a_silent_connection_is_opened_when_it_sends() -> None:
    received: list[bytes] = []
    has_all = asyncio.Event()

    class KeepingProtocol(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            received.append(data)
            has_all.set()

    with socket.create_server(("127.0.0.1", 0)) as listener, connected(listener, 1, first=b"") as (client,):
        accepting = accept_at(listener, lambda _: KeepingProtocol())
        for _ in range(5):
            await asyncio.sleep(0)
        client.sendall(b"GET /")
        async with asyncio.timeout(PATIENCE_S):
            await has_all.wait()
        accepting.close()
    assert received == [b"GET /"]


async def test_a_silent_connection_leaves_for_a_newer_one() -> None:
    made = asyncio.Event()

    with socket.create_server(("127.0.0.1", 0)) as listener, connected(listener, 1, first=b"") as (silent,):
        accepting = accept_at(listener, lambda _: MadeProtocol(made), table=ConnectionTable(1))
        for _ in range(5):
            await asyncio.sleep(0)
        with connected(listener, 1):
            async with asyncio.timeout(PATIENCE_S):
                await made.wait()
        assert await asyncio.to_thread(silent.recv, 1) == b""
        accepting.close()


async def test_with_no_room_a_connection_is_opened_to_be_refused() -> None:
    made = asyncio.Event()

    class FullTable(ConnectionTable):
        def add(self, connection: Evictable) -> bool:
            return False

    with socket.create_server(("127.0.0.1", 0)) as listener, connected(listener, 1, first=b""):
        accepting = accept_at(listener, lambda _: MadeProtocol(made), table=FullTable(1))
        async with asyncio.timeout(PATIENCE_S):
            await made.wait()
        accepting.close()


def test_connections_whose_clients_left_are_not_opened() -> None:
    """A flood of them would else delay those of clients that wait."""
    with socket.create_server(("127.0.0.1", 0), backlog=2 * CLIENTS) as listener:
        with connected(listener, CLIENTS) as clients:
            for client in clients:
                client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with connected(listener, 1, "127.0.0.2"):
            opened = open_all(listener, 1)
    assert opened.addresses == ["127.0.0.2"]


async def test_one_of_several_processes_leaves_connections_to_the_others() -> None:
    class ManyListener(socket.socket):
        taken = 0

        def accept(self) -> tuple[socket.socket, object]:
            self.taken += 1
            return super().accept()

    with ManyListener() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(CLIENTS)
        with connected(listener, CLIENTS):
            accepting = accept_at(listener, lambda _: asyncio.Protocol(), is_shared=True)
            async with asyncio.timeout(PATIENCE_S):
                while not listener.taken:  # noqa: ASYNC110 - a listener has no event
                    await asyncio.sleep(0)
            accepting.close()
            await accepting.wait_closed()
    assert listener.taken <= acceptor.SHARED_ROUND_CONNECTIONS


async def test_it_goes_on_when_descriptors_are_free_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(acceptor, "RETRY_S", 0.01)
    made = asyncio.Event()

    listener = ScarceListener()
    listener.errors = [errno.ECONNABORTED, errno.EMFILE]
    with listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with connected(listener, 1):
            accepting = accept_at(listener, lambda _: MadeProtocol(made))
            async with asyncio.timeout(PATIENCE_S):
                await made.wait()
            accepting.close()
            await accepting.wait_closed()
    assert "Too many open files" in caplog.text


async def test_the_system_keeps_little_of_an_answer_that_is_not_read() -> None:
    taken = 0
    full = asyncio.Event()

    class ChattyProtocol(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            nonlocal taken
            assert isinstance(transport, asyncio.WriteTransport)
            while transport.get_write_buffer_size() == 0:
                transport.write(b"x" * 65536)
                taken += 65536
            transport.close()
            full.set()

    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        accepting = accept_at(listener, lambda _: ChattyProtocol())
        client.connect(listener.getsockname())
        client.sendall(b"GET ")
        async with asyncio.timeout(PATIENCE_S):
            await full.wait()
        accepting.close()
    assert taken <= 2 * 2**20


async def test_closed_it_accepts_none_even_while_it_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "RETRY_S", 0.01)
    listener = ScarceListener()
    listener.errors = [errno.EMFILE]
    with listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with connected(listener, 1):
            accepting = accept_at(listener, lambda _: asyncio.Protocol())
            async with asyncio.timeout(PATIENCE_S):
                while listener.errors:  # noqa: ASYNC110 - a listener has no event
                    await asyncio.sleep(0)
            accepting.close()
            await asyncio.sleep(5 * acceptor.RETRY_S)
            # The connection is still to be accepted.
            listener.setblocking(False)
            socket.socket.accept(listener)[0].close()
