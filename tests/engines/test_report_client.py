"""The gateway's end of a report link: its states, and connections that end and return."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import zmq
from msgspec.structs import replace
from tests.report_links import FACTS, SECRET, LinkedGateway, free_address, linked, serving
from tests.waiting import PATIENCE_S, until
from zmq.utils import z85

from autellix_backend.core.config import SchedulerConfig
from autellix_backend.engines import report_client
from autellix_backend.engines.report_client import LinkState
from autellix_backend.gateway.engines.reporting import reporting_of
from autellix_backend.reports.link import ENGINE, MESSAGE, PROTOCOL, EngineFacts, link_key


async def test_it_learns_what_the_engine_is() -> None:
    address = free_address()
    with serving(address):
        async with linked(address) as gateway:
            await gateway.client.settled(10.0)
            assert gateway.client.is_up
            assert gateway.client.first_facts == FACTS
            assert gateway.client.address == address


async def test_nothing_at_the_port_is_known_soon() -> None:
    async with linked(free_address()) as gateway:
        await gateway.client.settled(10.0)
        assert gateway.client.state is LinkState.ABSENT
        assert gateway.client.first_facts is None


async def test_a_server_of_another_kind_is_no_report_port() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(64)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(100))
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, linked(f"tcp://127.0.0.1:{port}") as gateway:
        await gateway.reaches(LinkState.ABSENT)


async def test_it_survives_restarts_of_the_engine() -> None:
    """With the first one killed, and reports on both sides of it."""
    address = free_address()
    async with linked(address) as gateway:
        await gateway.reaches(LinkState.ABSENT)
        with serving(address) as server:
            await gateway.reaches(LinkState.UP)
            server.send("g1", b"before")
            await gateway.has(b"before")
        await until(lambda: not gateway.client.is_up)
        with serving(address, facts=lambda: replace(FACTS, engine="e2")) as server:
            await gateway.reaches(LinkState.UP)
            assert gateway.client.first_facts is not None
            assert gateway.client.first_facts.engine == "e2"
            server.send("g1", b"after")
            await gateway.has(b"before", b"after")


async def test_it_survives_restarts_of_the_gateway() -> None:
    address = free_address()
    with serving(address) as server:
        for name in ("g1", "g2"):
            async with linked(address, name=name) as gateway:
                await gateway.reaches(LinkState.UP)
                server.send(name, name.encode())
                await gateway.has(name.encode())


async def test_a_silent_engine_is_lost_and_its_facts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_client, "LOST_S", 0.2)
    monkeypatch.setattr(report_client, "HELLO_PERIOD_S", 0.05)
    address = free_address()
    async with engine_that_answers(address) as (answer, gateway):
        answer.set()
        await gateway.reaches(LinkState.UP)
        answer.clear()
        await gateway.reaches(LinkState.LOST)
        assert gateway.client.first_facts == FACTS
        answer.set()
        await gateway.reaches(LinkState.UP)


async def test_a_refused_secret_is_tried_again() -> None:
    address = free_address()
    async with linked(address) as gateway:
        with serving(address, secret="another one, as long"):
            await gateway.reaches(LinkState.REFUSED)
        with serving(address):
            await gateway.reaches(LinkState.UP)


async def test_another_look_finds_another_server() -> None:
    """An engine that wanted a secret, which ZeroMQ does not ask again, is gone."""
    address = free_address()
    async with linked(address, secret=None) as gateway:
        with serving(address):
            await gateway.reaches(LinkState.LOCKED)
        gateway.client.open([address])
        assert gateway.client.state is LinkState.CONNECTING
        await gateway.reaches(LinkState.ABSENT)


async def test_without_a_secret_every_refusal_means_that_one_is_missing() -> None:
    """Also where the engine ends the handshake before this side sees which mechanism it speaks."""
    greeting = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        with contextlib.suppress(asyncio.IncompleteReadError):
            await reader.readexactly(len(greeting))
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with (
        server,
        linked(f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}", secret=None) as gateway,
    ):
        await gateway.reaches(LinkState.LOCKED)


async def test_another_look_leaves_a_link_alone_that_works() -> None:
    address = free_address()
    with serving(address):
        async with linked(address) as gateway:
            await gateway.reaches(LinkState.UP)
            gateway.client.open([address])
            assert gateway.states == [LinkState.UP]


async def test_all_ranks_are_heard() -> None:
    ranks = [free_address(), free_address()]
    with serving(ranks[0]) as one, serving(ranks[1], facts=lambda: replace(FACTS, rank=1)) as other:
        async with linked(*ranks) as gateway:
            await until(lambda: len(gateway.client.facts) == 2)
            one.send("g1", b"rank 0")
            other.send("g1", b"rank 1")
            await until(lambda: sorted(gateway.messages) == [b"rank 0", b"rank 1"])


async def test_a_flood_does_not_hold_up_the_event_loop() -> None:
    """All of it arrives, in order, in many short rounds."""
    address = free_address()
    with serving(address) as server:
        async with linked(address) as gateway:
            await gateway.reaches(LinkState.UP)
            expected = [str(number).encode() for number in range(4 * report_client.MAX_ROUND)]
            for message in expected:
                server.send("g1", message)
            await until(lambda: len(gateway.messages) == len(expected))
            assert gateway.messages == expected


async def test_large_messages_take_several_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_client, "MAX_ROUND_BYTES", 1)
    address = free_address()
    expected = [str(number).encode() for number in range(50)]
    with serving(address) as server:
        async with linked(address) as gateway:
            await gateway.reaches(LinkState.UP)
            for message in expected:
                server.send("g1", message)
            most, before = 0, 0
            async with asyncio.timeout(PATIENCE_S):
                while len(gateway.messages) < len(expected):
                    await asyncio.sleep(0)
                    most, before = max(most, len(gateway.messages) - before), len(gateway.messages)
            assert gateway.messages == expected
            assert most <= 10


async def test_malformed_messages_of_an_engine_are_ignored() -> None:
    address = free_address()
    async with engine_that_answers(address) as (answer, gateway):
        answer.set()
        await gateway.reaches(LinkState.UP)
        await gateway.has(b"real")


@pytest.mark.parametrize("protocol", [PROTOCOL - 1, PROTOCOL + 1])
async def test_an_engine_of_another_protocol_is_told_apart(protocol: int) -> None:
    """In one line; what it sends is not read, and an upgrade there mends it."""
    address = free_address()
    told: list[EngineFacts] = []

    def facts() -> EngineFacts:
        told.append(replace(FACTS, protocol=protocol, version="9.0"))
        return told[-1]

    async with linked(address) as gateway:
        with serving(address, facts=facts) as server:
            await gateway.reaches(LinkState.OTHER)
            shown = reporting_of(gateway.client, SchedulerConfig(), has_socket=False, is_ordered_here=False)
            assert shown.state == "other"
            assert shown.text == (
                f"{address} cannot be understood (version 9.0 speaks protocol {protocol} of reports, "
                f"not {PROTOCOL}): upgrade the older side: it orders calls itself, charged by the tokens of "
                "their answers"
            )
            server.broadcast(b"a snapshot of another form")
            # A later message of the same connection than the snapshot.
            told.clear()
            await until(lambda: len(told) > 1)
            assert gateway.messages == []
            assert gateway.states.count(LinkState.OTHER) == 1
        with serving(address):
            await gateway.reaches(LinkState.UP)


async def test_an_address_that_is_none_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async with linked("tcp://127.0.0.1:notaport") as gateway:
        assert gateway.client.state is LinkState.CONNECTING
        await gateway.client.settled(0.0)
    assert "report port tcp://127.0.0.1:notaport" in caplog.text


async def test_it_may_be_closed_unopened_and_twice() -> None:
    gateway = LinkedGateway()
    await gateway.client.close()
    gateway.client.open([free_address()])
    await gateway.client.close()
    await gateway.client.close()
    assert gateway.client.address


@asynccontextmanager
async def engine_that_answers(address: str) -> AsyncIterator[tuple[asyncio.Event, LinkedGateway]]:
    """Yield an event that lets an engine answer each hello, with garbage beside, and a gateway at it."""
    may_answer = asyncio.Event()
    context: zmq.Context[Any] = zmq.Context()
    router: Any = context.socket(zmq.ROUTER)
    router.curve_server = True
    router.curve_secretkey = z85.encode(link_key(SECRET))
    router.bind(address)

    async def answer() -> None:
        is_first = True
        while True:
            await asyncio.sleep(0.005)
            while router.poll(0):
                route, *_ = router.recv_multipart()
                if may_answer.is_set():
                    router.send_multipart([route, ENGINE, FACTS.to_bytes()])
                    garbage = [[ENGINE, b"{"], [b"odd"], [b"what", b"?"], [MESSAGE], [ENGINE, b"", b""]]
                    for frames in garbage if is_first else ():
                        router.send_multipart([route, *frames])
                    if is_first:
                        router.send_multipart([route, MESSAGE, b"real"])
                    is_first = False

    task = asyncio.create_task(answer())
    try:
        async with linked(address) as gateway:
            yield may_answer, gateway
    finally:
        task.cancel()
        context.destroy(linger=0)
