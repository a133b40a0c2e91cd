"""Connections that have sent nothing yet: their first bytes, their end, and their patience."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.waiting import PATIENCE_S

from autellix_backend.gateway.http import newcomers
from autellix_backend.gateway.http.newcomers import Newcomer, SilentNewcomers


class Heard:
    """Takes what is found of newcomers."""

    def __init__(self) -> None:
        self.found: list[tuple[Newcomer, bytes]] = []
        self._event = asyncio.Event()

    def take(self, newcomer: Newcomer, first: bytes) -> None:
        self.found.append((newcomer, first))
        self._event.set()

    async def until(self, count: int) -> list[tuple[Newcomer, bytes]]:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.found) < count:
                self._event.clear()
                await self._event.wait()
        return self.found


@contextmanager
def pairs(count: int) -> Iterator[list[tuple[socket.socket, Newcomer]]]:
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            client, ours = socket.socketpair()
            stack.enter_context(client)
            stack.enter_context(ours)
            found.append((client, Newcomer(ours, "127.0.0.1")))
        yield found


async def test_first_bytes_are_found_once_and_stay_to_be_read() -> None:
    heard = Heard()
    silent = SilentNewcomers(heard.take)
    with pairs(2) as ((client, newcomer), (_, still_silent)):
        assert newcomer.first_bytes() is None
        silent.add(newcomer)
        silent.add(still_silent)
        client.sendall(b"GET /")
        assert await heard.until(1) == [(newcomer, b"GET /")]
        client.sendall(b" more")
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(heard.found) == 1
        assert newcomer.connection.recv(100) == b"GET / more"
        silent.close()


async def test_a_client_that_leaves_without_a_byte_is_found_too() -> None:
    heard = Heard()
    silent = SilentNewcomers(heard.take)
    with pairs(1) as ((client, newcomer),):
        silent.add(newcomer)
        client.close()
        assert await heard.until(1) == [(newcomer, b"")]
        silent.close()


async def test_silent_ones_are_given_up_in_order_and_not_all_in_one_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(newcomers, "SILENCE_S", 0.01)
    monkeypatch.setattr(newcomers, "ROUND_NEWCOMERS", 2)
    heard = Heard()
    silent = SilentNewcomers(heard.take)
    with pairs(5) as found:
        for _, newcomer in found:
            silent.add(newcomer)
        assert await heard.until(5) == [(newcomer, b"") for _, newcomer in found]
        silent.close()


async def test_an_evicted_one_is_given_up_before_its_time() -> None:
    """Its descriptor may belong to another one at once."""
    heard = Heard()
    silent = SilentNewcomers(heard.take)
    with pairs(1) as ((_, evicted),):
        number = evicted.connection.fileno()
        silent.add(evicted)
        evicted.evict()
        assert evicted.is_closed
        with pairs(1) as ((client, newcomer),):
            assert number in {client.fileno(), newcomer.connection.fileno()}
            silent.add(newcomer)
            client.sendall(b"x")
            assert await heard.until(1) == [(newcomer, b"x")]
            silent.close()


async def test_a_closed_one_that_a_child_has_too_is_nobody() -> None:
    """Between its fork and exec a child has all sockets, and the epoll goes on to report them."""
    heard = Heard()
    silent = SilentNewcomers(heard.take)
    with pairs(2) as ((client, evicted), (other, newcomer)):
        childs = os.dup(evicted.connection.fileno())
        silent.add(evicted)
        silent.add(newcomer)
        evicted.evict()
        client.sendall(b"x")
        other.sendall(b"y")
        assert await heard.until(1) == [(newcomer, b"y")]
        os.close(childs)
        silent.close()


async def test_closed_it_passes_on_what_was_sent_and_ends_the_rest() -> None:
    heard = Heard()
    silent = SilentNewcomers(heard.take)
    with pairs(2) as ((client, newcomer), (_, still_silent)):
        silent.add(newcomer)
        silent.add(still_silent)
        client.sendall(b"x")
        silent.close()
        assert heard.found == [(newcomer, b"x"), (still_silent, b"")]


async def test_a_connection_that_was_reset_has_left() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        with listener.accept()[0] as ours:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
            client.close()
            assert Newcomer(ours, "127.0.0.1").first_bytes() == b""
