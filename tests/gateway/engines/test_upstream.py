"""Engines that answer byte by byte as a script says, stop in the middle, or take no connection."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.waiting import PATIENCE_S, until

from autellix_backend.gateway.engines import upstream
from autellix_backend.gateway.errors import InvalidRequestError
from autellix_backend.settings import GatewaySettings
from autellix_lab.fakes.engine import FakeEngine

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"model": "autellix.fake-model", "messages": [{"role": "user", "content": "hello"}]}
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

Script = Callable[[asyncio.StreamWriter], Awaitable[None]]


class ScriptedEngine(FakeEngine):
    """An engine that answers every request with the bytes that a script writes."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self._script = script
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.base_url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    def is_alive(self) -> bool:
        return self._server is not None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
            await reader.readexactly(int(length.split(b":")[1]))
            await self._script(writer)
            # Until the other side hangs up.
            while await reader.read(1024):
                pass
            self.aborted_calls += 1
        writer.close()


class UnreachableEngine(FakeEngine):
    """An engine at an address where connections are neither taken nor refused."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__()
        self._address = address

    async def start(self) -> None:
        await super().start()
        self.base_url = f"http://{self._address[0]}:{self._address[1]}"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


async def test_an_engine_that_stops_in_mid_stream_ends_it_with_an_error_event(
    serve: Any, wait_until: Any
) -> None:
    first = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'

    async def script(writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + chunk(first))
        await writer.drain()

    async with serve(engine=ScriptedEngine(script), reports=False, upstream_timeout_s=0.3) as rig:
        headers = {"X-Autellix-Program-ID": "p"}
        body = {**HELLO, "stream": True}
        async with rig.client.post(rig.url + CHAT, json=body, headers=headers) as response:
            assert response.status == 200
            content = await response.read()
        assert content.startswith(first)
        events = content.split(b"\n\n")
        errors = [event for event in events if event.startswith(b'data: {"error"')]
        assert [json.loads(error[6:])["error"]["code"] for error in errors] == ["engine_timeout"]
        assert b"[DONE]" not in content
        await wait_until(lambda: rig.engine.aborted_calls == 1)
        program = await rig.store.program("p")
        assert program is not None and program.active_calls == 0
        assert [view.end.outcome for view in program.calls] == ["timeout"]


async def test_an_engine_that_takes_no_connection_gives_a_503_in_time(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "CONNECT_TIMEOUT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, contextlib.ExitStack() as stack:
        address = listener.getsockname()
        # Nobody accepts: once the queue is full, the kernel drops further connection requests.
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(address)
        engine = UnreachableEngine(address)
        async with serve(engine=engine, reports=False, recovery_wait_s=0.5) as rig:
            # The kernel itself would try for two minutes.
            async with asyncio.timeout(PATIENCE_S), rig.client.post(rig.url + CHAT, json=HELLO) as response:
                assert response.status == 503
                assert response.headers["Retry-After"] == "1"
                error = (await response.json())["error"]
            assert error["code"] == "engine_unavailable"


async def test_a_stream_of_tool_call_deltas_passes_byte_for_byte(serve: Any) -> None:
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": None},
        {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "f"}}]},
        {
            "tool_calls": [
                {"index": 0, "function": {"arguments": '{"city": "Gen\u00e8ve", "x": "data: [DONE]'}}
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '"}\n\n'}}]},
    ]
    events = [
        b"data: "
        + json.dumps({"choices": [{"index": 0, "delta": delta}]}, ensure_ascii=False).encode()
        + b"\n\n"
        for delta in deltas
    ]
    stream = b": ping\r\n\r\n" + b"".join(events)
    done = b"data: [DONE]\n\n"

    async def script(writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        whole = stream + done
        # Chunks that break in the middle of events, characters and of the last line.
        for start in range(0, len(whole), 7):
            writer.write(chunk(whole[start : start + 7]))
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async with serve(engine=ScriptedEngine(script), reports=False) as rig:
        async with rig.client.post(rig.url + CHAT, json={**HELLO, "stream": True}) as response:
            content = await response.read()
        assert content.startswith(stream + b": autellix {")
        assert content.endswith(b"}\n\n" + done)


@contextlib.asynccontextmanager
async def heads_of_requests(path: str = "") -> Any:
    """Serve requests without bodies; yield an upstream, and the heads of what it sends."""
    heads: list[bytes] = []
    connections: list[asyncio.StreamWriter] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                heads.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        writer.close()

    engine = FakeEngine()
    engine.is_alive = lambda: True  # type: ignore[method-assign]
    requests = upstream.Upstream(engine, GatewaySettings(), lambda: None)
    requests.open()
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        engine.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{path}"
        yield engine, requests, heads
        await requests.close()
        await until(lambda: all(writer.is_closing() for writer in connections))


async def test_the_head_of_a_request() -> None:
    async with heads_of_requests("/base") as (engine, requests, heads):
        host = engine.base_url.removeprefix("http://").removesuffix("/base")
        # As the server decodes what a client sent in UTF-8.
        headers = upstream.request_headers({"authorization": "Bearer é".encode().decode("latin-1")})
        await requests.read(await requests.send("POST", "/a%2Fb?c=d", headers, b""))
    [first, *lines] = heads[0].decode().removesuffix("\r\n\r\n").split("\r\n")
    assert first == "POST /base/a%2Fb?c=d HTTP/1.1"
    assert {line.lower() for line in lines} == {
        f"host: {host}",
        "accept: */*",
        "accept-encoding: identity",
        "authorization: bearer é",
        "content-length: 0",
        "content-type: application/json",
    }


def test_a_header_that_would_arrive_as_another_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="authorization"):
        upstream.request_headers({"authorization": "Bearer k\xe9y"})


@pytest.mark.parametrize("value", ["a\r\nx-b: c", "a\nb", "a\rb", "a\0b"])
async def test_no_header_ends_its_line(value: str) -> None:
    async with heads_of_requests() as (_, requests, heads):
        for headers in ({"x-a": value}, {f"x-a{value}": "b"}):
            with pytest.raises(ValueError):
                await requests.send("POST", "/a", headers, b"")
    assert heads == []


async def test_an_engine_that_comes_back_at_another_address() -> None:
    async with (
        heads_of_requests() as (engine, requests, heads),
        heads_of_requests() as (other, _, other_heads),
    ):
        await requests.read(await requests.send("GET", "/a", {}, b""))
        engine.base_url = other.base_url
        await requests.read(await requests.send("GET", "/b", {}, b""))
        assert (len(heads), len(other_heads)) == (1, 1)
