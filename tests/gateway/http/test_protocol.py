"""Connections of clients that send too much or too slowly, that do not read, or that do nothing wrong."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import weakref
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send
from tests.serving import listening
from tests.waiting import PATIENCE_S, until
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from autellix_backend.gateway import requests
from autellix_backend.gateway.errors import RequestTimeoutError
from autellix_backend.gateway.http import protocol, rounds
from autellix_backend.gateway.http.errors import error_response
from autellix_backend.gateway.http.protocol import BoundedHttpProtocol, has_left, set_owner
from autellix_backend.gateway.requests import ClientGoneError, read_body, read_headers
from autellix_backend.gateway.tenancy.intake import Intake
from autellix_backend.gateway.tenancy.tenants import Tenant

MIB = 2**20
OK_HEAD = b"HTTP/1.1 200"


class EchoApp:
    """Answers with the number of bytes of the request's body, or with as many as `?N` asks for."""

    def __init__(self) -> None:
        self.intake = Intake(2**30, 2**30, None, lambda *_: None)
        self.disconnected = asyncio.Event()
        self.has_request = asyncio.Event()
        self.paths: list[str] = []
        self.headers: list[tuple[bytes, bytes]] = []
        """Of the last request, when its body was complete."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        self.paths.append(scope["path"])
        self.has_request.set()
        if scope["path"] == "/early":
            await self._answer(send, b"early")
            return
        try:
            body = await read_body(read_headers(scope), receive, self.intake.hold(Tenant()), 64 * MIB)
        except ClientGoneError:
            return
        except RequestTimeoutError as error:
            await error_response(error, scope["path"])(scope, receive, send)
            return
        self.headers = list(scope["headers"])
        if scope["path"] == "/stream":
            await self._stream(scope, receive, send)
            return
        await self._answer(send, str(len(body)).encode())

    async def _answer(self, send: Send, content: bytes) -> None:
        length = str(len(content)).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
        await send({"type": "http.response.body", "body": content})

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write() -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while True:
                await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
                await asyncio.sleep(0)

        await requests.run_while_connected(write(), scope, receive)
        self.disconnected.set()


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    try:
        yield reader, writer
    finally:
        writer.close()


async def exchange(url: str, *parts: bytes) -> bytes:
    """Send the parts of a request, and return all that comes until the end of the connection."""
    async with asyncio.timeout(PATIENCE_S), connected(url) as (reader, writer):
        for part in parts:
            writer.write(part)
            try:
                await writer.drain()
            except ConnectionError:
                break
        received = bytearray()
        with contextlib.suppress(ConnectionResetError):
            while part := await reader.read(65536):
                received += part
        return bytes(received)


def error_of(answer: bytes) -> dict[str, Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    error: dict[str, Any] = json.loads(body)["error"]
    return error


async def test_a_head_of_any_size_is_refused_before_it_is_held() -> None:
    async with listening(EchoApp()) as url:
        value = await exchange(url, b"GET / HTTP/1.1\r\nhost: a\r\na: ", *[b"b" * 65536] * 32)
        many = await exchange(url, b"GET / HTTP/1.1\r\nhost: a\r\n", *[b"a:b\r\n" * 10000] * 32)
        assert value.startswith(b"HTTP/1.1 431 ")
        assert many.startswith(b"HTTP/1.1 431 ")
        assert error_of(value)["code"] == "head_too_large"
        assert "128 headers or 65536 bytes" in error_of(many)["message"]


async def test_complete_heads_are_measured_too() -> None:
    async with listening(EchoApp()) as url:
        large = b"GET / HTTP/1.1\r\nhost: a\r\na: " + b"b" * protocol.MAX_HEAD_BYTES + b"\r\n\r\n"
        many = b"GET / HTTP/1.1\r\nhost: a\r\n" + b"a: b\r\n" * protocol.MAX_HEADERS + b"\r\n"
        assert (await exchange(url, large)).startswith(b"HTTP/1.1 431 ")
        assert (await exchange(url, many)).startswith(b"HTTP/1.1 431 ")


async def test_a_long_target_is_refused() -> None:
    app = EchoApp()
    async with listening(app) as url:
        answer = await exchange(url, b"GET /v1/messages?" + b"a" * 9000 + b" HTTP/1.1\r\nhost: a\r\n\r\n")
        endless = await exchange(url, b"GET /", *[b"a" * 65536] * 32)
    assert answer.startswith(b"HTTP/1.1 414 ")
    assert endless.startswith(b"HTTP/1.1 414 ")
    assert error_of(endless)["message"] == "path and query exceed 8192 bytes"
    assert not app.paths


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([b"1;" + b"a" * 65536, *[b"a" * 65536] * 16], id="chunk extension"),
        pytest.param([b"0\r\na: ", *[b"b" * 65536] * 16], id="trailer"),
        pytest.param([b"0\r\n", *[b"a: b\r\n" * 10000] * 16], id="trailers"),
    ],
)
async def test_what_surrounds_a_chunked_body_is_bounded(parts: list[bytes]) -> None:
    async with listening(EchoApp()) as url:
        head = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
        # The request is under way, so there is no answer of another kind: the connection ends.
        assert OK_HEAD not in await exchange(url, head, *parts)


async def test_large_bodies_and_pipelined_requests_pass() -> None:
    async with listening(EchoApp()) as url:
        post = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\n" + b"x" * 1000000
        last = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
        answer = await exchange(url, post + post + last)
        chunked = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
        chunks = await exchange(url, chunked, *[b"10000\r\n" + b"x" * 65536 + b"\r\n"] * 8, b"0\r\n\r\n")
    assert answer.count(OK_HEAD) == 3
    assert answer.count(b"1000000") == 2
    assert chunks.endswith(b"524288")


async def test_pipelined_requests_are_bounded() -> None:
    app = EchoApp()
    async with listening(app) as url:
        # Half a megabyte of them: each would take a task, and several kilobytes.
        await exchange(url, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n" * 16_000)
    assert len(app.paths) <= 1 + protocol.MAX_PIPELINED


async def test_a_request_with_another_behind_it_learns_that_its_client_left() -> None:
    app = EchoApp()
    async with asyncio.timeout(PATIENCE_S), listening(app) as url:
        async with connected(url) as (reader, writer):
            writer.write(b"GET /stream HTTP/1.1\r\nhost: a\r\n\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\n")
            assert (await reader.read(12)) == OK_HEAD
        await app.disconnected.wait()


async def test_trailers_do_not_join_the_headers() -> None:
    app = EchoApp()
    async with listening(app) as url:
        head = b"POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
        answer = await exchange(url, head + b"1\r\nx\r\n0\r\nauthorization: Bearer other\r\n\r\n")
    assert answer.endswith(b"\r\n\r\n1")
    assert dict(app.headers).keys() == {b"host", b"connection", b"transfer-encoding"}


async def test_chunks_of_a_byte_are_passed_on_together(monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[int] = []
    on_body = HttpToolsProtocol.on_body

    def count(self: HttpToolsProtocol, body: bytes) -> None:
        passed.append(len(body))
        on_body(self, body)

    monkeypatch.setattr(HttpToolsProtocol, "on_body", count)
    async with listening(EchoApp()) as url:
        head = b"POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
        answer = await exchange(url, head + b"1\r\nx\r\n" * 10_000 + b"0\r\n\r\n")
    assert answer.endswith(b"10000")
    assert sum(passed) == 10_000
    assert len(passed) < 1_000


@pytest.mark.parametrize("anyio_backend", [pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop")])
async def test_long_reads_are_parsed_in_pieces_of_which_a_round_has_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connections, number = 4, 0
    parsed: Counter[int] = Counter()
    data_received = HttpToolsProtocol.data_received

    def count_round() -> None:
        nonlocal number
        number += 1
        loop.call_soon(count_round)

    def count(self: HttpToolsProtocol, data: bytes) -> None:
        parsed[number] += len(data)
        data_received(self, data)

    monkeypatch.setattr(rounds, "ROUND_S", 1e-9)
    monkeypatch.setattr(rounds, "SHARE", 0.0)
    monkeypatch.setattr(rounds, "RENEWAL_S", PATIENCE_S)
    monkeypatch.setattr(HttpToolsProtocol, "data_received", count)
    async with listening(EchoApp()) as url:
        loop = asyncio.get_running_loop()
        loop.call_soon(count_round)
        head = b"POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
        request = head + b"1\r\nx\r\n" * 100_000 + b"0\r\n\r\n"
        answers = await asyncio.gather(*(exchange(url, request) for _ in range(connections)))
    assert [answer.endswith(b"100000") for answer in answers] == [True] * connections
    assert sum(parsed.values()) == connections * len(request)
    # One of those that wait, and one of a read that came when none waited.
    assert max(parsed.values()) <= 2 * protocol.PIECE_BYTES


@pytest.mark.parametrize("anyio_backend", [pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop")])
async def test_a_round_reads_once_from_a_client_that_sends_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what is only dropped: of one that goes on sending, libuv reads 8 MiB at once."""
    number, total = 0, 0
    reads: Counter[int] = Counter()
    data_received = BoundedHttpProtocol.data_received

    def count_round() -> None:
        nonlocal number
        number += 1
        loop.call_soon(count_round)

    def count(self: BoundedHttpProtocol, data: bytes) -> None:
        nonlocal total
        reads[number] += 1
        total += len(data)
        data_received(self, data)

    monkeypatch.setattr(BoundedHttpProtocol, "data_received", count)
    async with listening(EchoApp()) as url:
        loop = asyncio.get_running_loop()
        loop.call_soon(count_round)
        target = b"GET /" + b"a" * (protocol.MAX_TARGET_BYTES + 1) + b" HTTP/1.1\r\n\r\n"
        async with asyncio.timeout(PATIENCE_S), connected(url) as (_, writer):
            writer.write(target + b"x" * (16 * MIB))
            await until(lambda: total > 4 * MIB)
    assert max(reads.values()) == 1


@pytest.mark.parametrize("anyio_backend", [pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop")])
async def test_requests_that_come_at_once_are_served_in_several_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connections, number = 20, 0
    begun: Counter[int] = Counter()

    def count_round() -> None:
        nonlocal number
        number += 1
        loop.call_soon(count_round)

    class CountingApp(EchoApp):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            begun[number] += scope["type"] == "http"
            await super().__call__(scope, receive, send)

    monkeypatch.setattr(rounds, "ROUND_S", 1.5 * rounds.REQUEST_S)
    monkeypatch.setattr(rounds, "SHARE", 0.0)
    monkeypatch.setattr(rounds, "RENEWAL_S", PATIENCE_S)
    async with listening(CountingApp()) as url, contextlib.AsyncExitStack() as stack:
        loop = asyncio.get_running_loop()
        loop.call_soon(count_round)
        async with asyncio.timeout(PATIENCE_S):
            opened = [await stack.enter_async_context(connected(url)) for _ in range(connections)]
            for _, writer in opened:
                writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            for reader, _ in opened:
                assert (await reader.read(12)) == OK_HEAD
    assert begun.total() == connections
    assert max(begun.values()) <= 2


@pytest.mark.parametrize("anyio_backend", [pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop")])
async def test_connections_that_end_at_once_are_closed_in_several_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connections, number = 20, 0
    closed: Counter[int] = Counter()
    connection_lost = BoundedHttpProtocol.connection_lost

    def count_round() -> None:
        nonlocal number
        number += 1
        loop.call_soon(count_round)

    def count(self: BoundedHttpProtocol, exc: Exception | None) -> None:
        closed[number] += 1
        connection_lost(self, exc)

    monkeypatch.setattr(BoundedHttpProtocol, "connection_lost", count)
    monkeypatch.setattr(rounds, "ROUND_S", 1.5 * rounds.REQUEST_S)
    monkeypatch.setattr(rounds, "SHARE", 0.0)
    monkeypatch.setattr(rounds, "RENEWAL_S", PATIENCE_S)
    async with listening(EchoApp()) as url, asyncio.timeout(PATIENCE_S):
        loop = asyncio.get_running_loop()
        loop.call_soon(count_round)
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(connections):
                await stack.enter_async_context(connected(url))
        await until(lambda: closed.total() == connections)
    assert max(closed.values()) <= 2


async def test_a_connection_takes_the_turns_of_the_tenant_of_its_last_request() -> None:
    owners: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            connection = scope["state"][protocol.CONNECTION]()
            owners.append(connection.owner)
            set_owner(scope, "red")
            owners.append(connection.owner)
            await EchoApp()(scope, receive, send)

    async with listening(app) as url:
        await exchange(url, b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
    assert owners == ["127.0.0.1", "red"]
    # Where another server serves it there is nothing to do.
    set_owner({"type": "http"}, "red")


@pytest.mark.parametrize("anyio_backend", [pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop")])
async def test_a_client_may_leave_while_its_long_read_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "ROUND_S", 1e-9)
    app = EchoApp()
    async with listening(app) as url:
        head = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
        async with asyncio.timeout(PATIENCE_S), connected(url) as (_, writer):
            writer.write(head + b"1\r\nx\r\n" * 30_000)
            await app.has_request.wait()
            writer.transport.abort()
        answer = await exchange(url, b"GET /early HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
    assert answer.startswith(OK_HEAD)


async def test_connections_that_end_leave_nothing_to_the_garbage_collector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left: weakref.WeakSet[Any] = weakref.WeakSet()
    on_headers_complete = HttpToolsProtocol.on_headers_complete

    def note(self: HttpToolsProtocol) -> None:
        on_headers_complete(self)
        left.update([self, self.cycle])

    monkeypatch.setattr(HttpToolsProtocol, "on_headers_complete", note)
    get = b"GET /%s HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
    gc.disable()
    try:
        app = EchoApp()
        async with listening(app) as url:
            assert (await exchange(url, get % b"early")).startswith(OK_HEAD)
            assert (await exchange(url, b"not HTTP\r\n\r\n")).startswith(b"HTTP/1.1 400")
            async with connected(url) as (reader, writer), asyncio.timeout(PATIENCE_S):
                writer.write(get % b"stream")
                await reader.readexactly(1)
                writer.transport.abort()
                await app.disconnected.wait()
            app.disconnected.clear()
            async with connected(url) as (reader, writer), asyncio.timeout(PATIENCE_S):
                writer.write(b"GET /stream HTTP/1.1\r\nhost: a\r\n\r\n" + 2 * (get % b"behind"))
                await reader.readexactly(1)
                writer.transport.abort()
                await app.disconnected.wait()
        await until(lambda: not left)
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "request_bytes",
    [b"not HTTP\r\n\r\n", b"POST /early HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nhalf"],
    ids=["refused", "answered before its end"],
)
async def test_what_waits_for_the_rest_of_a_request_ends_with_its_connection(
    monkeypatch: pytest.MonkeyPatch, request_bytes: bytes
) -> None:
    """A flood of them would else keep all its connections in memory for as long as that waits."""
    monkeypatch.setattr(protocol, "LINGER_S", 10 * PATIENCE_S)
    made: weakref.WeakSet[Any] = weakref.WeakSet()
    connection_made = BoundedHttpProtocol.connection_made

    def note(self: BoundedHttpProtocol, transport: asyncio.Transport) -> None:
        made.add(self)
        connection_made(self, transport)

    monkeypatch.setattr(BoundedHttpProtocol, "connection_made", note)
    async with listening(EchoApp()) as url:
        async with connected(url) as (reader, writer), asyncio.timeout(PATIENCE_S):
            writer.write(request_bytes)
            await reader.readexactly(12)
            assert made
        await until(lambda: not made)


async def test_a_request_knows_whether_its_client_has_left() -> None:
    seen: list[bool] = []
    has_begun, has_ended = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            seen.append(has_left(scope))
            has_begun.set()
            await receive()
            await receive()
            seen.append(has_left(scope))
            has_ended.set()

    async with listening(app) as url, asyncio.timeout(PATIENCE_S):
        async with connected(url) as (_, writer):
            writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            await has_begun.wait()
        await has_ended.wait()
    assert seen == [False, True]
    assert not has_left({"type": "http"})


async def test_garbage_gets_an_error_object() -> None:
    async with listening(EchoApp()) as url:
        answer = await exchange(url, b"\x16\x03\x01 hello\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert error_of(answer)["code"] == "invalid_request"


async def test_garbage_after_a_request_does_not_enter_its_answer() -> None:
    async with listening(EchoApp()) as url:
        request = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
        assert await exchange(url, request + b"5\r\nhello\r\nnonsense\r\n") == b""


async def test_slow_heads_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT_S", 0.05)
    async with listening(EchoApp()) as url:
        assert await exchange(url) == b""
        answer = await exchange(url, b"GET / HTTP/1.1\r\n")
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert error_of(answer)["code"] == "request_timeout"
        async with asyncio.timeout(PATIENCE_S), connected(url) as (reader, writer):
            writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\n0")).startswith(OK_HEAD)
            writer.write(b"GET /again HTTP/1.1\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 408 ")


async def test_slow_bodies_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "BODY_GRACE_S", 0.05)
    async with listening(EchoApp()) as url:
        answer = await exchange(url, b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\nabc")
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert "3 bytes of its body came" in error_of(answer)["message"]


async def test_the_rest_of_an_answered_request_is_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "LINGER_S", 0.05)
    async with listening(EchoApp()) as url:
        answer = await exchange(url, b"POST /early HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\nabc")
    assert answer.endswith(b"early")


async def test_a_client_that_does_not_read_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "STALL_PERIOD_S", 0.05)
    app = EchoApp()
    async with asyncio.timeout(PATIENCE_S), listening(app) as url, connected(url) as (reader, writer):
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET /stream HTTP/1.1\r\nhost: a\r\n\r\n")
        await app.disconnected.wait()


async def test_a_client_that_reads_slowly_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "STALL_PERIOD_S", 0.05)
    monkeypatch.setattr(protocol, "MIN_READ_BYTES", 0)
    app = EchoApp()
    async with asyncio.timeout(PATIENCE_S), listening(app) as url, connected(url) as (reader, writer):
        writer.write(b"GET /stream HTTP/1.1\r\nhost: a\r\n\r\n")
        for _ in range(20):
            assert await reader.read(2 * MIB)
            await asyncio.sleep(0.02)
        assert not app.disconnected.is_set()


async def test_the_oldest_idle_connection_makes_room() -> None:
    request = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
    async with (
        asyncio.timeout(PATIENCE_S),
        listening(EchoApp(), max_connections=2) as url,
        connected(url) as (silent, _),
        connected(url) as (reader, writer),
    ):
        writer.write(request)
        assert (await reader.readuntil(b"\r\n")).startswith(OK_HEAD)
        answer = await exchange(url, request.replace(b"host: a", b"host: a\r\nconnection: close"))
        assert answer.startswith(OK_HEAD)
        assert await silent.read() == b""


async def test_without_an_idle_connection_there_is_no_room() -> None:
    app = EchoApp()
    async with (
        asyncio.timeout(PATIENCE_S),
        listening(app, max_connections=1) as url,
        connected(url) as (_, writer),
    ):
        writer.write(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\n")
        await app.has_request.wait()
        answer = await exchange(url)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert error_of(answer)["code"] == "too_many_connections"


@pytest.mark.parametrize("anyio_backend", [pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop")])
@pytest.mark.parametrize("body_bytes", [0, 200 * 1024])
@pytest.mark.parametrize("leaves_first", [False, True])
async def test_a_client_that_leaves_ends_the_work_for_it(
    body_bytes: int, leaves_first: bool, anyio_backend: Any
) -> None:
    """Behind a long body reading was paused, and would not show the end."""
    has_head, began, may_work, ended = (asyncio.Event() for _ in range(4))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        has_head.set()
        while (await receive()).get("more_body"):
            pass
        began.set()
        await may_work.wait()
        await requests.run_while_connected(asyncio.sleep(PATIENCE_S * 10), scope, receive)
        ended.set()

    async with listening(app) as url, asyncio.timeout(PATIENCE_S):
        async with connected(url) as (_, writer):
            writer.write(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % body_bytes)
            await has_head.wait()
            writer.write(b"a" * body_bytes)
            await began.wait()
            if not leaves_first:
                may_work.set()
                await asyncio.sleep(0)
        await writer.wait_closed()
        may_work.set()
        await ended.wait()
