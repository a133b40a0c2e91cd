"""An engine that answers nothing any more, while its connections stand: a stopped process, a lost host."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace

import pytest
from tests.fakes.engine import FakeBehaviour, Fault
from tests.gateway.engines.pools import CHAT, PROGRAM, PoolRig, serving_pool
from tests.waiting import until

from autellix_backend.engines import supervisor
from autellix_backend.engines.remote import RemoteEngine
from autellix_backend.gateway.engines import upstream
from autellix_backend.gateway.errors import EngineUnavailableError
from autellix_backend.observe.metrics import GatewayMetrics
from autellix_backend.settings import Settings

ANSWERS = FakeBehaviour()
HANGS = FakeBehaviour(fault=Fault.HANG)
DRIPS = FakeBehaviour(token_delay_s=0.3, output_tokens=1000)
LARGE = bytes(2**24)
"""More than the buffers of a connection hold."""


@pytest.fixture(autouse=True)
def quick_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "PROBE_PERIOD_S", 0.05)
    monkeypatch.setattr(supervisor, "PROBE_TIMEOUT_S", 0.1)
    monkeypatch.setattr(upstream, "SILENT_S", 0.1)


def fall_silent(rig: PoolRig) -> None:
    """Let the first engine answer no probe any more; its calls hang already."""
    rig.engines[0].behaviour = replace(rig.engines[0].behaviour, health_status=None)


@pytest.mark.parametrize("is_streaming", [False, True])
async def test_unanswered_calls_move_on(is_streaming: bool) -> None:
    async with serving_pool(HANGS, ANSWERS, is_owned=False) as rig:
        call = asyncio.create_task(rig.chat("p", stream=is_streaming))
        await rig.engines[0].wait_until(lambda: len(rig.engines[0].calls) == 1)
        fall_silent(rig)
        assert (await call)[0] == 200
        first, second = (engine.calls[0].xargs["autellix_call"] for engine in rig.engines)
        assert first != second
        # Once it continues, it finds the connection closed.
        await until(lambda: rig.engines[0].aborted_calls == 1)


async def test_a_begun_stream_ends_with_an_error_event() -> None:
    async with serving_pool(DRIPS, ANSWERS, is_owned=False) as rig:
        body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}
        async with rig.client.post(rig.url + CHAT, json=body, headers={PROGRAM: "p"}) as response:
            first = await response.content.readany()
            fall_silent(rig)
            content = first + await response.read()
        assert b"token0" in content
        assert b'"code":"engine_unavailable","retryable":false' in content
        assert not rig.engines[1].calls


async def test_an_engine_that_streams_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is busy: its event loop has no time for probes."""
    monkeypatch.setattr(upstream, "SILENT_S", 60.0)
    async with serving_pool(replace(DRIPS, output_tokens=8), ANSWERS, is_owned=False) as rig:
        call = asyncio.create_task(rig.chat("p", stream=True))
        await rig.engines[0].wait_until(lambda: len(rig.engines[0].calls) == 1)
        fall_silent(rig)
        handle = rig.app.state.gateway.pool.get("fake-0")
        await until(lambda: handle.supervisor.is_silent)
        assert (await call)[1] == "fake-0"
        assert not rig.engines[1].calls
        rig.engines[0].behaviour = ANSWERS
        await until(lambda: handle.supervisor.is_up)


async def test_a_drain_of_a_silent_engine_ends() -> None:
    async with serving_pool(HANGS, ANSWERS, is_owned=False) as rig:
        call = asyncio.create_task(rig.chat("p"))
        await rig.engines[0].wait_until(lambda: len(rig.engines[0].calls) == 1)
        assert (await rig.ask("POST", "/fake-0/drain"))[1]["open_calls"] == 1
        fall_silent(rig)

        async def is_empty() -> bool:
            return bool((await rig.ask("GET", ""))[1]["engines"][0]["open_calls"] == 0)

        await until(is_empty)
        assert await call == (200, "fake-1")


async def test_a_request_that_is_not_read_fails_when_it_is_cut_off() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # The kernel takes the connection, and nobody reads.
        engine = RemoteEngine(f"http://127.0.0.1:{listener.getsockname()[1]}")
        engine._is_started = True
        made = upstream.Upstream(engine, Settings(), GatewayMetrics())
        made.open()
        try:
            call = asyncio.create_task(made.send("POST", CHAT, {}, LARGE))
            await until(lambda: bool(made._sockets))
            while not call.done():
                made.cut_off()
                await asyncio.sleep(0.01)
            with pytest.raises(EngineUnavailableError):
                await call
        finally:
            await made.close()


def test_dead_connections_end() -> None:
    made = upstream.Upstream(RemoteEngine("http://127.0.0.1:1"), Settings(), GatewayMetrics())
    with made._make_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ())) as found:
        assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == upstream.DEAD_PEER_S // 2
        assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == upstream.DEAD_PEER_S * 1000
