"""An engine's report port: who gets what, and what strangers cannot do."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import Any

import pytest
import zmq
from tests.report_links import SECRET, Raw, free_address, linked, serving
from tests.waiting import PATIENCE_S, until, wait_until
from zmq.utils import z85

from autellix_backend.engines.report_client import LinkState
from autellix_backend.reports.link import (
    END_OF_TOPIC,
    MAX_UPSTREAM_BYTES,
    SNAPSHOT_TOPIC,
    link_key,
    report_topic,
)
from autellix_backend.vllm_plugin import report_server
from autellix_backend.vllm_plugin.report_server import MAX_ENDS, ReportServer

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
"""The first bytes of a ZeroMQ client that knows nothing."""


def peer_of(address: str, secret: str = SECRET, kind: int = zmq.SUB) -> tuple[zmq.Context[Any], Any]:
    """Return the socket of a gateway that does as it likes."""
    context: zmq.Context[Any] = zmq.Context()
    peer: Any = context.socket(kind)
    public, private = zmq.curve_keypair()
    peer.curve_publickey, peer.curve_secretkey = public, private
    peer.curve_serverkey = zmq.curve_public(z85.encode(link_key(secret)))
    peer.rcvtimeo, peer.sndhwm = int(1000 * PATIENCE_S), 0
    peer.connect(address)
    return context, peer


def host_port(address: str) -> tuple[str, int]:
    return "127.0.0.1", int(address.rpartition(":")[2])


async def test_each_gateway_gets_its_own_reports_and_all_snapshots() -> None:
    address = free_address()
    with serving(address) as server:
        async with linked(address, name="g1") as one, linked(address, name="g2") as other:
            await until(lambda: server.is_connected("g1") and server.is_connected("g2"))
            server.send("g1", Raw(b"report 1"))
            server.send("g2", Raw(b"report 2"))
            server.broadcast(Raw(b"snapshot"))
            await one.has(b"report 1", b"snapshot")
            await other.has(b"report 2", b"snapshot")
    assert server.dropped_records == 0


def test_a_stranger_gets_nothing() -> None:
    """Not one byte beyond ZeroMQ's greeting, with any first bytes, and not for long."""
    address = free_address()
    with serving(address) as server:
        server.broadcast(Raw(b"secret snapshot"))
        for hello in (
            b"GET / HTTP/1.1\r\n\r\n",
            os.urandom(4096),
            GREETING + b"\x04\x29\x05READY" + bytes(40),
        ):
            with socket.create_connection(host_port(address), timeout=PATIENCE_S) as stranger:
                stranger.sendall(hello)
                got = b""
                try:
                    while part := stranger.recv(4096):
                        got += part
                except ConnectionResetError:
                    pass
            assert len(got) <= len(GREETING)
        assert not server.has_gateways


def test_a_connection_without_a_handshake_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(report_server.OPTIONS, zmq.HANDSHAKE_IVL, 50)
    address = free_address()
    with serving(address), socket.create_connection(host_port(address), timeout=PATIENCE_S) as stranger:
        while stranger.recv(4096):
            pass


async def test_a_wrong_secret_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    address = free_address()
    caplog.set_level(logging.WARNING)
    with serving(address) as server:
        async with linked(address, secret="another secret of theirs") as gateway:
            await gateway.reaches(LinkState.REFUSED)
            await until(lambda: "with another engine.report_secret" in caplog.text)
            server.broadcast(Raw(b"snapshot"))
            assert gateway.messages == []
        # Either end may see first that the other wants no secret; this one says so and then waits.
        with socket.create_connection(host_port(address), timeout=PATIENCE_S) as gateway_without:
            gateway_without.sendall(GREETING.replace(b"CURVE", b"NULL\0"))
            await until(lambda: "without engine.report_secret" in caplog.text)
    lines = [record.message for record in caplog.records]
    assert len(lines) == len(set(lines)) == 2


async def test_an_engine_without_a_secret_says_so_and_lets_nobody_in(
    caplog: pytest.LogCaptureFixture,
) -> None:
    address = free_address()
    caplog.set_level(logging.WARNING)
    with serving(address, secret=None) as server:
        async with linked(address) as gateway:
            await gateway.reaches(LinkState.REFUSED)
        assert not server.has_gateways
    assert "AUTELLIX_ENGINE_REPORT_SECRET is not set" in caplog.text


async def test_gateways_end_programs() -> None:
    """With reports in both directions, and for as long as the gateway is connected."""
    address = free_address()
    with serving(address) as server:
        async with linked(address) as gateway:
            gateway.client.end_program("too early")
            await gateway.reaches(LinkState.UP)
            await until(lambda: server.is_connected("g1"))
            server.send("g1", Raw(b"report 1"))
            for program_id in ("tenant:p", "ü", "x" * MAX_UPSTREAM_BYTES):
                gateway.client.end_program(program_id)
            server.send("g1", Raw(b"report 2"))
            await until(lambda: len(server._ends) == 2)
            assert list(server.take_ends()) == ["tenant:p", "ü"]
            await gateway.has(b"report 1", b"report 2")
        gateway.client.end_program("too late")
    assert list(server.take_ends()) == []


async def test_garbage_of_a_gateway_harms_nobody() -> None:
    address = free_address()
    with serving(address) as server:
        context, peer = peer_of(address, kind=zmq.XSUB)
        for subscription in (b"", b"x", bytes(4000), b"report " + b"\xff"):
            peer.send(b"\1" + subscription)
        await until(lambda: b"x" in server._topics)
        for frame in (b"", b"\0unknown", b"x", b"end", b"ends\0p", b"end\0\xff\xfe"):
            peer.send(frame)
        for number in range(MAX_ENDS):
            peer.send(b"end\0%d" % number)
        async with linked(address) as gateway:
            await gateway.reaches(LinkState.UP)
            assert server.is_connected("g1")
            await until(lambda: bool(server._ends) and server._ends[-1] == str(MAX_ENDS - 1))
            assert len(server._ends) == MAX_ENDS
            # Larger than any topic: the connection ends.
            peer.send(b"\1" + bytes(5000))
            await until(lambda: b"x" not in server._topics)
        context.destroy(linger=0)


async def test_a_gateway_that_does_not_read_loses_messages_and_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its lost reports are counted; snapshots go on to the others."""
    monkeypatch.setitem(report_server.OPTIONS, zmq.SNDHWM, 10)
    address = free_address()
    with serving(address) as server:
        context, peer = peer_of(address)
        peer.rcvhwm = 1
        for topic in (SNAPSHOT_TOPIC, report_topic("slow")):
            peer.subscribe(topic + END_OF_TOPIC)
        async with linked(address) as gateway:
            await gateway.reaches(LinkState.UP)
            await until(lambda: server.is_connected("slow"))
            # More than the kernel's buffers hold on both sides.
            for _ in range(2_000):
                server.send("slow", Raw(bytes(20_000)))
            await until(lambda: server.dropped_records > 0)
            server.broadcast(Raw(b"snapshot"))
            await gateway.has(b"snapshot")
        received = 0

        def are_all_accounted_for() -> bool:
            nonlocal received
            while peer.poll(0):
                received += peer.recv().startswith(b"report")
            return received + server.dropped_records == 2_000

        await until(are_all_accounted_for)
        context.destroy(linger=0)


def test_what_waits_for_the_thread_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_server, "MAX_PENDING", 0)
    with serving(free_address()) as server:
        server.send("g", Raw(b"x"))
        assert server.dropped_records == 1


def test_a_taken_port_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(report_server, "FACTS_PERIOD_MS", 20)
    address = free_address()
    with socket.create_server(host_port(address)):
        server = ReportServer(address, SECRET, lambda: None)  # type: ignore[arg-type, return-value]
        assert not server.is_listening
        assert "cannot listen" in caplog.text
    wait_until(lambda: server.is_listening)
    server.close()


async def test_a_fault_ends_reports_and_not_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> Any:
        raise RuntimeError("no facts")

    address = free_address()
    with serving(address, facts=fail) as server:
        async with linked(address):
            await until(lambda: "reports to gateways have ended" in caplog.text)

        def is_dropped() -> bool:
            server.send("g1", Raw(b"x"))
            return server.dropped_records > 0

        await until(is_dropped)
        assert not server.has_gateways


async def test_a_recorded_connection_cannot_be_replayed() -> None:
    """All that a gateway has ever sent, sent again by one who has recorded it."""
    address, recorded = free_address(), b""
    with serving(address) as server:
        with socket.create_server(("127.0.0.1", 0)) as relay:
            relay_address = f"tcp://127.0.0.1:{relay.getsockname()[1]}"
            async with linked(relay_address, name="victim"):
                recorded = await relay_until(relay, host_port(address), server)
        await until(lambda: not server.is_connected("victim"))
        with socket.create_connection(host_port(address), timeout=PATIENCE_S) as attacker:
            attacker.sendall(recorded)
            got = attacker.recv(65536)
            try:
                while part := attacker.recv(65536):
                    got += part
            except (ConnectionResetError, TimeoutError):
                pass
        assert not server.is_connected("victim")
        # A greeting and the answer to the first message, which any sender of that message gets: nothing else.
        assert len(got) < 300


async def relay_until(relay: socket.socket, target: tuple[str, int], server: ReportServer) -> bytes:
    """Pass bytes on in both directions until the gateway is connected; return those of the gateway."""
    loop = asyncio.get_running_loop()
    relay.setblocking(False)
    inner, _ = await loop.sock_accept(relay)
    outer = socket.create_connection(target)
    for end in (inner, outer):
        end.setblocking(False)
    sent = b""

    async def pass_on(source: socket.socket, sink: socket.socket, *, is_recorded: bool) -> None:
        nonlocal sent
        while data := await loop.sock_recv(source, 65536):
            sent += data if is_recorded else b""
            await loop.sock_sendall(sink, data)

    tasks = [
        asyncio.create_task(pass_on(inner, outer, is_recorded=True)),
        asyncio.create_task(pass_on(outer, inner, is_recorded=False)),
    ]
    await until(lambda: server.is_connected("victim"))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    inner.close()
    outer.close()
    return sent
