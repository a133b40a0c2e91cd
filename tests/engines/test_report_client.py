"""The gateway's end of a report link: its states, and connections that end and return."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from tests.report_links import FACTS, LinkedGateway, Raw, free_address, linked, serving
from tests.waiting import PATIENCE_S, until

from autellix_backend.core.config import SchedulerConfig
from autellix_backend.engines import report_client
from autellix_backend.engines.report_client import LinkState
from autellix_backend.gateway.engines.reporting import reporting_of
from autellix_backend.reports.link import PROTOCOL


async def test_it_learns_what_the_engine_is() -> None:
    address = free_address()
    with serving(address):
        async with linked(address) as gateway:
            await gateway.client.settled(10.0)
            assert gateway.client.is_up
            assert gateway.client.first_facts == FACTS
            assert gateway.client.address == address


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
            server.send("g1", Raw(b"before"))
            await gateway.has(b"before")
        await until(lambda: not gateway.client.is_up)
        assert gateway.client.first_facts == FACTS, "kept while the engine is lost"
        with serving(address, facts=lambda: replace(FACTS, engine="e2")) as server:
            await gateway.reaches(LinkState.UP)
            assert gateway.client.first_facts is not None
            assert gateway.client.first_facts.engine == "e2"
            server.send("g1", Raw(b"after"))
            await gateway.has(b"before", b"after")


async def test_it_survives_restarts_of_the_gateway() -> None:
    address = free_address()
    with serving(address) as server:
        for name in ("g1", "g2"):
            async with linked(address, name=name) as gateway:
                await gateway.reaches(LinkState.UP)
                server.send(name, Raw(name.encode()))
                await gateway.has(name.encode())


async def test_an_engine_on_this_machine_needs_no_secret(local_address: str) -> None:
    async with linked(local_address) as gateway:
        await gateway.reaches(LinkState.ABSENT)
        with serving(local_address, secret=None) as server:
            await gateway.reaches(LinkState.UP)
            server.send("g1", Raw(b"report"))
            server.broadcast(Raw(b"snapshot"))
            await gateway.has(b"report", b"snapshot")


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
            await gateway.reaches(LinkState.REFUSED)
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
        await gateway.reaches(LinkState.REFUSED)


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
            one.send("g1", Raw(b"rank 0"))
            other.send("g1", Raw(b"rank 1"))
            await until(lambda: sorted(gateway.messages) == [b"rank 0", b"rank 1"])


async def test_calls_have_turns_between_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_client, "ROUND_BYTES", 1)
    address = free_address()
    expected = [str(number).encode() for number in range(50)]
    with serving(address) as server:
        async with linked(address) as gateway:
            await gateway.reaches(LinkState.UP)
            for message in expected:
                server.send("g1", Raw(message))
            most, before = 0, 0
            async with asyncio.timeout(PATIENCE_S):
                while len(gateway.messages) < len(expected):
                    await asyncio.sleep(0)
                    most, before = max(most, len(gateway.messages) - before), len(gateway.messages)
            assert gateway.messages == expected
            assert most <= 10


async def test_malformed_facts_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    address = free_address()
    malformed = SimpleNamespace(to_bytes=lambda: b"{")
    with serving(address, facts=lambda: malformed) as server:  # type: ignore[arg-type, return-value]
        async with linked(address) as gateway:
            await until(lambda: "not an engine's facts" in caplog.text)
            assert gateway.client.state is LinkState.CONNECTING
            server.send("g1", Raw(b"real"))
            await gateway.has(b"real")


@pytest.mark.parametrize(("protocol", "side"), [(PROTOCOL - 1, "the engine"), (PROTOCOL + 1, "this gateway")])
async def test_an_engine_of_another_protocol_is_told_apart(protocol: int, side: str) -> None:
    """In one line; what it sends is not read, and an upgrade mends it."""
    address = free_address()
    async with linked(address) as gateway:
        with serving(address, facts=lambda: replace(FACTS, protocol=protocol, version="9.0")) as server:
            await gateway.reaches(LinkState.OTHER)
            shown = reporting_of(gateway.client, SchedulerConfig(), is_ordered_here=False, order="")
            assert shown.state == "other"
            assert shown.text == (
                f"{address} cannot be understood (version 9.0 speaks protocol {protocol} of reports, "
                f"not {PROTOCOL}: upgrade {side}): ordered by the engine; usage is estimated from tokens"
            )
            server.broadcast(Raw(b"a snapshot of another form"))
        with serving(address) as server:
            await gateway.reaches(LinkState.UP)
            assert gateway.states.count(LinkState.OTHER) == 1
            server.broadcast(Raw(b"one of ours"))
            await gateway.has(b"one of ours")


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
