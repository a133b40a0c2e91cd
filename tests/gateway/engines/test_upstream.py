"""Engines that stop in the middle of an answer, or take no connection; and what reaches them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import pytest
from tests.fakes.engine import FakeEngine
from tests.gateway.calls.test_bad_answers import EVENT, gateway
from tests.raw_engine import STREAM, chunk
from tests.waiting import PATIENCE_S, until

from autellix_backend.gateway.engines import upstream
from autellix_backend.gateway.errors import InvalidRequestError
from autellix_backend.observe.metrics import GatewayMetrics
from autellix_backend.settings import Settings

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"model": "autellix.fake-model", "messages": [{"role": "user", "content": "hello"}]}


class UnreachableEngine(FakeEngine):
    """An engine at an address where connections are neither taken nor refused."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__()
        self._address = address

    async def start(self) -> None:
        await super().start()
        self.base_url = f"http://{self._address[0]}:{self._address[1]}"


async def test_an_engine_that_stops_in_mid_stream_ends_it_with_an_error_event(
    serve: Any, wait_until: Any
) -> None:
    async with gateway(serve, upstream_timeout_s=0.3) as (rig, raw, settled):
        raw.parts, raw.stays = [STREAM, chunk(EVENT)], True
        async with rig.client.post(rig.url + CHAT, json={**HELLO, "stream": True}) as response:
            content = await response.read()
        # That of the health checks may stay.
        await wait_until(lambda: raw.open_connections <= 1)
    assert content.startswith(EVENT)
    assert b'data: {"error"' in content and b'"code":"engine_timeout"' in content
    assert b"[DONE]" not in content
    assert [call.outcome for call in settled] == ["timeout"]


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
    requests = upstream.Upstream(engine, Settings(), GatewayMetrics())
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
        # A header of tracing must not fail a call.
        traces = dict.fromkeys(("traceparent", "tracestate", "x-request-id"), "caf\xe9")
        assert not traces.keys() & upstream.request_headers(traces).keys()
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


async def test_an_engine_that_comes_back_at_another_address() -> None:
    async with (
        heads_of_requests() as (engine, requests, heads),
        heads_of_requests() as (other, _, other_heads),
    ):
        await requests.read(await requests.send("GET", "/a", {}, b""))
        engine.base_url = other.base_url
        await requests.read(await requests.send("GET", "/b", {}, b""))
        assert (len(heads), len(other_heads)) == (1, 1)
