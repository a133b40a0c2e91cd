"""The fake engine answers as an OpenAI server does, and fails on demand."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from tests.fakes.engine import CHAT_PATH, FakeBehaviour, FakeEngine, Fault
from tests.report_links import linked
from tests.waiting import until

from autellix_backend.engines.base import Engine
from autellix_backend.engines.report_client import LinkState
from autellix_backend.reports.report import EngineReport

CHAT_BODY = {"model": "m", "messages": [{"role": "user", "content": "hello there"}]}


def with_engine(
    behaviour: FakeBehaviour,
    use: Callable[[FakeEngine, aiohttp.ClientSession], Awaitable[None]],
    report_address: str | None = None,
) -> FakeEngine:
    engine = FakeEngine(behaviour, report_address=report_address)

    async def main() -> None:
        await engine.start()
        async with aiohttp.ClientSession() as client:
            await use(engine, client)
        await engine.stop()

    asyncio.run(main())
    return engine


async def post(engine: FakeEngine, client: aiohttp.ClientSession, **fields: object) -> tuple[int, bytes]:
    async with client.post(engine.base_url + CHAT_PATH, json=CHAT_BODY | fields) as response:
        return response.status, await response.read()


def test_is_an_engine() -> None:
    """The fake fulfils the Engine protocol."""
    assert isinstance(FakeEngine(), Engine)


def test_answers_a_chat_completion() -> None:
    """A plain call gets one answer with usage and the extra fields."""

    async def use(engine: FakeEngine, client: aiohttp.ClientSession) -> None:
        status, body = await post(engine, client, max_tokens=2)
        answer = json.loads(body)
        assert status == 200
        assert answer["choices"][0]["message"]["content"] == "token0 token1 "
        assert answer["usage"]["completion_tokens"] == 2
        assert answer["future"] == "kept"

    engine = with_engine(FakeBehaviour(extra_fields={"future": "kept"}), use)

    assert engine.completed_calls == 1
    assert engine.calls[0].json["messages"][0]["content"] == "hello there"


def test_streams_chunks_usage_and_done() -> None:
    """A streamed call gets one chunk per token, usage when asked for, and the end mark."""

    async def use(engine: FakeEngine, client: aiohttp.ClientSession) -> None:
        _, body = await post(engine, client, stream=True, stream_options={"include_usage": True})
        events = [line.removeprefix("data: ") for line in body.decode().split("\n\n") if line]
        assert events.pop() == "[DONE]"
        assert json.loads(events.pop())["usage"]["completion_tokens"] == 4
        texts = [json.loads(event)["choices"][0]["delta"]["content"] for event in events]
        assert texts == ["token0 ", "token1 ", "token2 ", "token3 "]

    with_engine(FakeBehaviour(), use)


def test_fails_the_chosen_number_of_calls() -> None:
    """After `faulty_calls` faults, calls succeed."""

    async def use(engine: FakeEngine, client: aiohttp.ClientSession) -> None:
        statuses = [(await post(engine, client))[0] for _ in range(3)]
        assert statuses == [503, 503, 200]

    with_engine(FakeBehaviour(fault=Fault.ERROR, error_status=503, faulty_calls=2), use)


@pytest.mark.parametrize("is_streaming", [False, True])
@pytest.mark.parametrize("fault", [Fault.RESET_BEFORE_FIRST_BYTE, Fault.RESET_MID_STREAM])
def test_resets_the_connection(fault: Fault, is_streaming: bool) -> None:
    """A reset reaches the client as a connection or payload error."""

    async def use(engine: FakeEngine, client: aiohttp.ClientSession) -> None:
        with pytest.raises(aiohttp.ClientError):
            await post(engine, client, stream=is_streaming)

    with_engine(FakeBehaviour(fault=fault), use)


@pytest.mark.parametrize(
    ("behaviour", "is_streaming"),
    [
        (FakeBehaviour(fault=Fault.HANG), False),
        (FakeBehaviour(token_delay_s=0.05, output_tokens=100), True),
    ],
)
def test_notices_aborted_calls(behaviour: FakeBehaviour, is_streaming: bool) -> None:
    """A client that goes away counts as an abort."""

    async def use(engine: FakeEngine, client: aiohttp.ClientSession) -> None:
        call = asyncio.create_task(post(engine, client, stream=is_streaming))
        await engine.wait_until(lambda: len(engine.calls) == 1)
        call.cancel()
        await engine.wait_until(lambda: engine.aborted_calls > 0)

    engine = with_engine(behaviour, use)

    assert (engine.aborted_calls, engine.completed_calls) == (1, 0)


def test_a_stream_that_its_client_leaves_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The next token meets a connection that is reset: the client's affair, no error of the server."""
    gate = asyncio.Event()

    async def use(engine: FakeEngine, _client: aiohttp.ClientSession) -> None:
        _reader, writer = await asyncio.open_connection("127.0.0.1", int(engine.base_url.rpartition(":")[2]))
        body = json.dumps(CHAT_BODY | {"stream": True})
        writer.write(
            f"POST {CHAT_PATH} HTTP/1.1\r\nHost: fake\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        await engine.wait_until(lambda: len(engine.calls) == 1)
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # Its socket is closed in the loop's next turn, ahead of the first token.
        writer.transport.abort()
        asyncio.get_running_loop().call_soon(gate.set)
        await engine.wait_until(lambda: engine.aborted_calls > 0)

    with_engine(FakeBehaviour(gate=gate), use)

    assert caplog.records == []


def test_a_killed_engine_returns_its_failure() -> None:
    """kill() ends running calls and differs from stop()."""

    async def use(engine: FakeEngine, client: aiohttp.ClientSession) -> None:
        call = asyncio.create_task(post(engine, client))
        await engine.wait_until(lambda: bool(engine.calls))
        await engine.kill("out of memory")
        with pytest.raises(aiohttp.ClientError):
            await call
        assert (engine.is_alive(), engine.failure()) == (False, "out of memory")

    with_engine(FakeBehaviour(fault=Fault.HANG), use)


def test_sends_one_report_per_call(local_address: str) -> None:
    """The report has the ids of the request."""
    xargs: dict[str, Any] = {
        "autellix_program": "p",
        "autellix_call": "c",
        "autellix_service_s": 1.5,
        "autellix_gateway": "g1",
    }

    async def use(engine: FakeEngine, client: aiohttp.ClientSession) -> None:
        async with linked(local_address) as gateway:
            await gateway.reaches(LinkState.UP)
            for _ in range(2):
                await post(engine, client, vllm_xargs=xargs)
            await until(lambda: len(gateway.messages) == 2)
            report = EngineReport.from_bytes(gateway.messages[0])
        assert (report.program_id, report.call_id, report.inherited_service_s) == ("p", "c", 1.5)
        assert (report.output_tokens, report.is_aborted) == (4, False)

    with_engine(FakeBehaviour(), use, report_address=local_address)


def test_faults_may_be_drawn_by_their_shares() -> None:
    async def use(engine: FakeEngine, client: aiohttp.ClientSession) -> None:
        statuses = [(await post(engine, client))[0] for _ in range(60)]
        assert 15 < statuses.count(500) < 45
        assert statuses.count(200) == 60 - statuses.count(500)

    with_engine(FakeBehaviour(fault_shares={Fault.ERROR: 0.5}), use)


def test_a_slow_call_begins_late(wait_s: float = 0.05) -> None:
    async def use(engine: FakeEngine, client: aiohttp.ClientSession) -> None:
        started_s = asyncio.get_running_loop().time()
        assert (await post(engine, client))[0] == 200
        assert asyncio.get_running_loop().time() - started_s >= wait_s

    with_engine(FakeBehaviour(fault=Fault.SLOW, slow_s=wait_s), use)
