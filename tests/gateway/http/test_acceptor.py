"""Many connections at once, clients that left, and no file descriptor left."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import uvloop
from tests.waiting import PATIENCE_S

from autellix_backend.gateway.http import acceptor, rounds
from autellix_backend.gateway.http.acceptor import Acceptor
from autellix_backend.gateway.http.rounds import Rounds

CLIENTS = 100


@contextmanager
def connected(
    listener: socket.socket, count: int, source: str = "127.0.0.1"
) -> Iterator[list[socket.socket]]:
    """Connect clients from an address, which takes no accepting."""
    with contextlib.ExitStack() as stack:
        address = listener.getsockname()
        yield [
            stack.enter_context(socket.create_connection(address, PATIENCE_S, (source, 0)))
            for _ in range(count)
        ]


class ScarceListener(socket.socket):
    """Has errors first, and then connections."""

    errors: list[int]

    def accept(self) -> tuple[socket.socket, object]:
        if self.errors:
            number = self.errors.pop(0)
            raise OSError(number, os.strerror(number))
        return super().accept()


@dataclass
class Opened:
    """Connections that were opened: in which round of the event loop, and for which address."""

    rounds: Counter[int] = field(default_factory=Counter)
    addresses: list[str] = field(default_factory=list)


def open_all(listener: socket.socket, count: int) -> Opened:
    """Open the connections that wait at a socket, on uvloop, until so many are open."""
    opened = Opened()
    number = 0

    class NotingProtocol(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            opened.rounds[number] += 1
            opened.addresses.append(transport.get_extra_info("peername")[0])
            transport.close()

    async def play() -> None:
        nonlocal number
        accepting = Acceptor(listener, NotingProtocol, Rounds())
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


def test_a_connection_does_not_wait_for_all_of_another_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "ROUND_S", 1e-9)
    monkeypatch.setattr(rounds, "SHARE", 0.0)
    monkeypatch.setattr(rounds, "RENEWAL_S", PATIENCE_S)
    monkeypatch.setattr(acceptor, "ROUND_CONNECTIONS", 2 * CLIENTS)
    monkeypatch.setattr(acceptor, "ACCEPT_S", PATIENCE_S)
    with (
        socket.create_server(("127.0.0.1", 0), backlog=2 * CLIENTS) as listener,
        connected(listener, CLIENTS),
        connected(listener, 1, "127.0.0.2"),
    ):
        opened = open_all(listener, CLIENTS + 1)
    assert opened.addresses.index("127.0.0.2") <= 2


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
            accepting = Acceptor(listener, asyncio.Protocol, Rounds(), is_shared=True)
            async with asyncio.timeout(PATIENCE_S):
                while not listener.taken:  # noqa: ASYNC110 - a listener has no event
                    await asyncio.sleep(0)
            accepting.close()
            await accepting.wait_closed()
    assert listener.taken <= acceptor.SHARED_MAX_WAITING


async def test_it_goes_on_when_descriptors_are_free_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(acceptor, "RETRY_S", 0.01)
    made = asyncio.Event()

    class NotingProtocol(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.set()
            transport.close()

    listener = ScarceListener()
    listener.errors = [errno.ECONNABORTED, errno.EMFILE]
    with listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with connected(listener, 1):
            accepting = Acceptor(listener, NotingProtocol, Rounds())
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
        accepting = Acceptor(listener, ChattyProtocol, Rounds())
        client.connect(listener.getsockname())
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
            accepting = Acceptor(listener, asyncio.Protocol, Rounds())
            async with asyncio.timeout(PATIENCE_S):
                while listener.errors:  # noqa: ASYNC110 - a listener has no event
                    await asyncio.sleep(0)
            accepting.close()
            await asyncio.sleep(5 * acceptor.RETRY_S)
            # The connection is still to be accepted.
            listener.setblocking(False)
            socket.socket.accept(listener)[0].close()
