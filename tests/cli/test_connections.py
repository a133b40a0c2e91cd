"""Connections that httptools and h11 share answer as h11 alone does."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.serving import PromptServer
from tests.waiting import PATIENCE_S

from autellix_backend.cli.connections import MAX_HEAD_BYTES
from autellix_backend.cli.server import server_config

GET = b"GET /a%20b?c=d HTTP/1.1\r\nhost: a\r\n"
POST = b"POST /post HTTP/1.1\r\nhost: a\r\n"
PLAIN = POST + b"content-length: 5\r\n\r\nhello"
LONG = POST + b"content-length: 2000\r\n\r\n" + bytes(2000)
HIDDEN = b"GET /hidden HTTP/1.1\r\nhost: a\r\n\r\n"
LAST = b"GET /last HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
OFFER = POST + b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAAB\r\n"
LATE = b"GET /late HTTP/1.1\r\nhost: a\r\n\r\n"
OFFER_WITH_BODY = OFFER + b"content-length: %d\r\n\r\n" % len(HIDDEN) + HIDDEN
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"
OFFER_IN_CHUNKS = OFFER + b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN)
CHUNKS = b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n"
LENGTH = b"content-length: %d\r\n" % len(HIDDEN)

FORMS = {
    "plain": PLAIN,
    "no body": GET + b"\r\n",
    "an upgrade": OFFER_WITH_BODY,
    "an upgrade, chunks": OFFER_IN_CHUNKS,
    "an upgrade behind a plain request": PLAIN + OFFER_WITH_BODY,
    "a websocket": GET + b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\r\n",
    "connect": b"CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\n" + HIDDEN,
    "an unknown method": b"BREW / HTTP/1.1\r\nhost: a\r\n\r\n",
    "chunks": CHUNKED + b"5\r\nhello\r\n0\r\n\r\n",
    "a trailer": CHUNKED + b"5\r\nhello\r\n0\r\ncontent-length: 9\r\nx: y\r\n\r\n",
    "a bad chunk": CHUNKED + b"xyz\r\n" + HIDDEN,
    "a chunk's extension": CHUNKED + b"0;\n\r\n" + HIDDEN,
    "chunks with bare line feeds": CHUNKED + b"0\n\n" + HIDDEN,
    "chunks and a length": POST
    + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    + HIDDEN,
    "a length and chunks": POST
    + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n"
    + HIDDEN,
    "compressed chunks": POST + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "another encoding": POST + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "a space before the colon": POST + b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "a vertical tab": POST + b"transfer-encoding:\x0bchunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "a folded line": POST + b"x: a\r\n transfer-encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "two lengths": POST + b"content-length: 0\r\n" + LENGTH + b"\r\n" + HIDDEN,
    "one length twice": POST + LENGTH + LENGTH + b"\r\n" + HIDDEN,
    "a list of lengths": POST + b"content-length: 1, 1\r\n\r\na",
    "a signed length": POST + LENGTH.replace(b": ", b": +") + b"\r\n" + HIDDEN,
    "a negative length": POST + b"content-length: -1\r\n\r\n" + HIDDEN,
    "a hexadecimal length": POST + b"content-length: 0x10\r\n\r\n" + HIDDEN,
    "an endless length": POST + b"content-length: 99999999999999999999999\r\n\r\n" + HIDDEN,
    "no host": b"GET / HTTP/1.1\r\n\r\n" + HIDDEN,
    "two hosts": b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n" + HIDDEN,
    "blanks around a value": GET + b"x:  \ty \t\r\n\r\n",
    "an old client": b"GET / HTTP/1.0\r\n\r\n",
    "an old client's kept connection": b"GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n",
    "another version": b"GET / HTTP/2.0\r\nhost: a\r\n\r\n" + HIDDEN,
    "a bad target": b"GET /caf\xe9 HTTP/1.1\r\nhost: a\r\n\r\n" + HIDDEN,
    "bare line feeds": b"GET / HTTP/1.1\nhost: a\n\n" + HIDDEN,
    "noise": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n" + HIDDEN,
}


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the request; do not read the body of one to /unread."""
    body, more = b"", scope["path"] != "/unread"
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    names = ("method", "path", "query_string", "http_version", "headers")
    answer = json.dumps([*(str(scope[name]) for name in names), body.decode("latin-1")]).encode()
    length = (b"content-length", str(len(answer)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": answer, "more_body": True})
    # The client may take the answer for complete before this.
    await asyncio.sleep(0.02 if scope["path"] == "/late" else 0)
    await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def serving(
    http: Any = None, *, keep_alive_s: float = PATIENCE_S, most: int | None = None
) -> AsyncIterator[int]:
    """Serve the app as the gateway does, or with another protocol; yield the port."""
    config = server_config(echo, most, lifespan="off")
    config.port, config.timeout_keep_alive = 0, keep_alive_s  # type: ignore[assignment]
    config.http = http or config.http
    server = PromptServer(config)
    task = asyncio.create_task(server.serve())
    async with asyncio.timeout(PATIENCE_S):
        while not server.started:  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0.005)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.end()
        await task


class Client(asyncio.Protocol):
    """A connection that keeps what has come, also when it is reset."""

    def __init__(self) -> None:
        self.received = b""
        self.is_answered = asyncio.Event()
        self.is_closed = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.is_answered.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_answered.set()
        self.is_closed.set()


async def answers(port: int, parts: Sequence[bytes], last: bytes = LAST) -> list[bytes]:
    """Send parts, each in a read of its own, and the last one after an answer; return the answers."""
    loop = asyncio.get_running_loop()
    transport, client = await loop.create_connection(Client, "127.0.0.1", port)
    async with asyncio.timeout(PATIENCE_S):
        for part in parts:
            if not transport.is_closing():
                transport.write(part)
            # The server's loop is this one: it reads before the next part.
            await asyncio.sleep(0.003)
        await (client.is_answered if last else client.is_closed).wait()
        if not transport.is_closing():
            transport.write(last)
        await client.is_closed.wait()
    lines = client.received.split(b"\r\n")
    kept = [line for line in lines if not line.lower().startswith((b"date:", b"server:"))]
    return b"\r\n".join(kept).split(b"HTTP/1.1 ")[1:]


def bodies(found: Sequence[bytes]) -> list[bytes]:
    """Return the status and the body of each answer: h11 alone writes the names of headers otherwise."""
    return [each[:3] + each.partition(b"\r\n\r\n")[2] for each in found]


@pytest.mark.parametrize("form", FORMS)
async def test_each_form_of_a_request_is_answered_as_by_h11(form: str) -> None:
    """However it is cut into reads, and whatever comes with it."""
    random_ = random.Random(form)
    async with serving() as ours, serving("h11") as h11:
        for data, last in ((FORMS[form], LAST), (FORMS[form] + LAST, b"")):
            right = bodies(await answers(h11, [data], last))
            assert right
            cut = random_.randrange(1, len(data))
            for parts in (
                [data],
                [data[:cut], data[cut:]],
                [data[at : at + 9] for at in range(0, len(data), 9)],
            ):
                found = bodies(await answers(ours, parts, last))
                assert found == right


@pytest.mark.parametrize("offer", [OFFER_WITH_BODY, OFFER_IN_CHUNKS], ids=["length", "chunks"])
@pytest.mark.parametrize("behind", [[], [PLAIN], [PLAIN, GET + b"\r\n"]], ids=["first", "second", "third"])
@pytest.mark.parametrize("is_cut", [False, True], ids=["whole", "cut"])
async def test_an_offered_upgrade_keeps_its_body_anywhere_on_a_connection(
    offer: bytes, behind: list[bytes], *, is_cut: bool
) -> None:
    """Its body is never read as a request."""
    cut = offer.index(b"\r\n\r\n") + 4
    parts = [offer[:cut], offer[cut:]] if is_cut else [offer]
    async with serving() as port:
        found = await answers(port, [*behind, *parts, OFFER_WITH_BODY, PLAIN])
    assert [each[:3] for each in found] == [b"200"] * (len(behind) + 4)
    requests = [json.loads(body[3:]) for body in bodies(found)]
    sent = ["/post", "/a b"][: len(behind)] + ["/post"] * 3 + ["/last"]
    assert [path for _, path, *_ in requests] == sent
    assert [body for *_, body in requests[len(behind) :]] == [HIDDEN.decode()] * 2 + ["hello", ""]


async def test_a_request_behind_an_answer_that_is_not_complete_is_answered() -> None:
    """A client may have all of an answer before the server has ended it."""
    async with serving() as port:
        for request in (PLAIN, OFFER_WITH_BODY):
            behind = request.replace(b"\r\n", b"\r\nconnection: close\r\n", 1)
            found = await answers(port, [LATE, behind[:10], behind[10:]], last=b"")
            assert [each[:3] for each in found] == [b"200"] * 2


@pytest.mark.parametrize("second", [PLAIN, OFFER_WITH_BODY, LONG], ids=["plain", "offer", "long"])
async def test_pipelined_requests_are_answered_in_their_order(second: bytes) -> None:
    """Also where one begins in the read in which a body ends."""
    async with serving() as port:
        for parts in (
            [PLAIN + second, PLAIN],
            [PLAIN + second[:20], second[20:] + PLAIN],
            [LONG[:-9], LONG[-9:] + second + PLAIN[:9], PLAIN[9:]],
            [LONG[:-9], LONG[-9:] + second[:20], second[20:] + PLAIN],
        ):
            found = await answers(port, parts)
            assert [each[:3] for each in found] == [b"200"] * 4


async def test_two_megabytes_of_requests_at_once_are_answered() -> None:
    count = 2 * 2**20 // len(LONG)
    async with serving() as port:
        found = await answers(port, [LONG * count])
    assert [each[:3] for each in found] == [b"200"] * (count + 1)


async def test_the_next_request_follows_a_body_that_is_not_read() -> None:
    head = b"POST /unread HTTP/1.1\r\nhost: a\r\ncontent-length: 100000\r\n\r\n"
    async with serving() as port:
        found = await answers(port, [head, bytes(60_000), bytes(40_000), PLAIN])
    assert [each[:3] for each in found] == [b"200"] * 3


@pytest.mark.parametrize("first", [b"", PLAIN, OFFER_WITH_BODY], ids=["first", "plain", "h11"])
async def test_an_endless_head_is_refused(first: bytes) -> None:
    part = b"x-%d: " + b"y" * (MAX_HEAD_BYTES // 8) + b"\r\n"
    parts = [first] if first else []
    async with serving() as port:
        for endless in ([part % number for number in range(10)], [part[6:-2]] * 10):
            found = await answers(port, [*parts, GET, *endless])
            assert [each[:3] for each in found] == [b"200"] * len(parts) + [b"400"]


@pytest.mark.parametrize("first", [b"", PLAIN, OFFER_WITH_BODY], ids=["first", "plain", "h11"])
@pytest.mark.parametrize("part", [b"", GET], ids=["silent", "half a head"])
async def test_a_connection_without_a_complete_head_is_closed(first: bytes, part: bytes) -> None:
    async with serving(keep_alive_s=0.1) as port:
        found = await answers(port, [first, part], last=b"")
    assert [each[:3] for each in found] == [b"200"] * bool(first)


async def test_a_call_may_take_longer_than_an_idle_connection_is_kept() -> None:
    async with serving(keep_alive_s=0.01) as port:
        for request in (
            b"GET /late HTTP/1.1\r\nhost: a\r\n\r\n",
            OFFER.replace(b"/post", b"/late") + b"\r\n",
        ):
            (found,) = await answers(port, [request], last=b"")
            assert found.endswith(b'"]')


async def test_connections_that_send_nothing_make_room() -> None:
    loop = asyncio.get_running_loop()
    async with serving(most=3) as port:
        silent = [await loop.create_connection(Client, "127.0.0.1", port) for _ in range(9)]
        (found,) = await answers(port, [LAST], last=b"")
        assert found.startswith(b"200")
        for transport, _ in silent:
            transport.close()


async def test_probes_are_answered_where_other_requests_are_refused() -> None:
    loop = asyncio.get_running_loop()
    probe = b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n"
    last_probe = LAST.replace(b"/last", b"/healthz")
    async with serving(most=2) as port:
        kept = [await loop.create_connection(Client, "127.0.0.1", port) for _ in range(2)]
        for transport, client in kept:
            # Until something was asked, such a connection would make room.
            transport.write(probe)
            await client.is_answered.wait()
        found = [(await answers(port, [request], last=b""))[0] for request in (PLAIN, last_probe)]
        for transport, _ in kept:
            transport.close()
    assert [each[:3] for each in found] == [b"503", b"200"]
