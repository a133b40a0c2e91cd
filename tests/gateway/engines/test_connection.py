"""What an engine may send: each answer in any split into pieces, and as aiohttp's client reads it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import pytest
from tests.waiting import PATIENCE_S

from autellix_backend.gateway.engines import connection
from autellix_backend.gateway.engines.connection import (
    EngineConnection,
    EngineResponse,
    MalformedResponseError,
)

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
LOST, MALFORMED = ConnectionResetError, MalformedResponseError
TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Read:
    """What a client makes of an answer."""

    status: int
    body: bytes
    stays: bool = True
    """Whether the connection serves another request."""


Outcome = Read | type[Exception]

ANSWERS: dict[str, tuple[bytes, Read]] = {
    "length": (OK + b"Content-Length: 5\r\n\r\nhello", Read(200, b"hello")),
    "no body": (OK + b"content-length: 0\r\n\r\n", Read(200, b"")),
    "chunks": (CHUNKED + b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n", Read(200, b"hello world")),
    "chunk sizes": (
        CHUNKED + b"00A\r\n0123456789\r\na\r\nabcdefghij\r\n000\r\n\r\n",
        Read(200, b"0123456789abcdefghij"),
    ),
    "extensions": (CHUNKED + b'2;a=b;c="d"\r\nhi\r\n0;e\r\n\r\n', Read(200, b"hi")),
    "trailers": (CHUNKED + b"2\r\nhi\r\n0\r\nX-Sum: 1\r\nX-More: 2\r\n\r\n", Read(200, b"hi")),
    "coding in capitals": (OK + b"TRANSFER-ENCODING: Chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", Read(200, b"a")),
    "until the end": (OK + b"\r\nall of it", Read(200, b"all of it", stays=False)),
    "older": (b"HTTP/1.0 200 OK\r\n\r\nall of it", Read(200, b"all of it", stays=False)),
    "older with length": (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", Read(200, b"hi", stays=False)),
    "older that stays": (
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nhi",
        Read(200, b"hi"),
    ),
    "closes": (OK + b"Connection: close\r\nContent-Length: 2\r\n\r\nhi", Read(200, b"hi", stays=False)),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", Read(204, b"")),
    "not modified": (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", Read(304, b"")),
    "continues": (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 2\r\n\r\nhi", Read(200, b"hi")),
    "hints": (
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 3 + OK + b"Content-Length: 2\r\n\r\nhi",
        Read(200, b"hi"),
    ),
    "an error": (b"HTTP/1.1 429 Too Many\r\nRetry-After: 1\r\nContent-Length: 2\r\n\r\n{}", Read(429, b"{}")),
    "no reason": (b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nhi", Read(200, b"hi")),
    "odd values": (OK + "X: \x85é\r\nY:\r\nZ: \t世 \r\nContent-Length: 1\r\n\r\na".encode(), Read(200, b"a")),
    "two of a name": (OK + b"X: 1\r\nx: 2\r\nContent-Length: 1\r\n\r\na", Read(200, b"a")),
    "more behind it": (
        OK + b"Content-Length: 2\r\n\r\nhi" + OK + b"Content-Length: 5\r\n\r\nother",
        Read(200, b"hi", stays=False),
    ),
    "rubbish behind it": (OK + b"Content-Length: 2\r\n\r\nhi\x00\x01", Read(200, b"hi", stays=False)),
}
FAULTS: dict[str, tuple[bytes, type[Exception]]] = {
    "nothing": (b"", LOST),
    "half a head": (OK + b"Content-Le", LOST),
    "half a body": (OK + b"Content-Length: 9\r\n\r\nhello", LOST),
    "half a chunk": (CHUNKED + b"9\r\nhello", LOST),
    "no last chunk": (CHUNKED + b"5\r\nhello\r\n", LOST),
    "only an interim one": (b"HTTP/1.1 100 Continue\r\n\r\n", LOST),
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01", MALFORMED),
    "another protocol": (b"SSH-2.0-OpenSSH_9.6\r\n", MALFORMED),
    "no chunk size": (CHUNKED + b"zz\r\nhello\r\n0\r\n\r\n", MALFORMED),
    "a chunk too long": (CHUNKED + b"ffffffffffffffffff\r\nhello", MALFORMED),
    "a chunk without its end": (CHUNKED + b"2\r\nhello\r\n0\r\n\r\n", MALFORMED),
    "a negative length": (OK + b"Content-Length: -2\r\n\r\nhi", MALFORMED),
    "a length of letters": (OK + b"Content-Length: two\r\n\r\nhi", MALFORMED),
    "a length too long": (OK + b"Content-Length: 99999999999999999999\r\n\r\nhi", MALFORMED),
    "two lengths": (OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nhi", MALFORMED),
    "length and chunks": (
        OK + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
        MALFORMED,
    ),
    "chunks and length": (
        OK + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
        MALFORMED,
    ),
    "another coding": (OK + b"Transfer-Encoding: gzip\r\n\r\nhi", MALFORMED),
    "codings": (OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", MALFORMED),
    "upgrade": (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nhi", MALFORMED),
    "a status of two digits": (b"HTTP/1.1 99 x\r\nContent-Length: 0\r\n\r\n", MALFORMED),
    "a status of four digits": (b"HTTP/1.1 2000 x\r\nContent-Length: 0\r\n\r\n", MALFORMED),
    "a space in a name": (OK + b"A b: c\r\nContent-Length: 0\r\n\r\n", MALFORMED),
    "a null in a value": (OK + b"A: b\x00c\r\nContent-Length: 0\r\n\r\n", MALFORMED),
    "a folded header": (OK + b"A: b\r\n c\r\nContent-Length: 0\r\n\r\n", MALFORMED),
    "bare line feeds": (b"HTTP/1.1 200 OK\nContent-Length: 2\n\nhi", MALFORMED),
    "a long header": (OK + b"A: " + b"b" * 2**17 + b"\r\nContent-Length: 0\r\n\r\n", MALFORMED),
    "many headers": (OK + b"a: b\r\n" * 2**14 + b"Content-Length: 0\r\n\r\n", MALFORMED),
    "interim ones without end": (b"HTTP/1.1 100 Continue\r\nA: b\r\n\r\n" * 2**12, MALFORMED),
}
CASES: dict[str, tuple[bytes, Outcome]] = {**ANSWERS, **FAULTS}
AIOHTTP_DIFFERS = {
    # It refuses the answer too.
    "rubbish behind it",
    # It gives the body as it is coded; no client of the gateway asked for that.
    "another coding",
    "codings",
    # It leaves what follows to its caller; for the gateway this is no answer.
    "upgrade",
    # It forgives them.
    "bare line feeds",
    "a folded header",
}


class Transport:
    """A transport that notes what is done to it."""

    def __init__(self) -> None:
        self.written = b""
        self.is_reading = True
        self.is_closed = False
        self.unsent_bytes = 0

    def write(self, data: bytes) -> None:
        self.written += data

    def abort(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes


class Wire:
    """A connection without a network: its engine's end."""

    def __init__(self) -> None:
        self.transport = Transport()
        self.freed: list[EngineConnection] = []
        self.lost: list[EngineConnection] = []
        self.connection = EngineConnection(on_free=self.freed.append, on_lost=self.lost.append)
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]

    async def ask(self, *, timeout_s: float = TIMEOUT_S, is_head_only: bool = False) -> asyncio.Task[Outcome]:
        """Send a request; return the task that reads its answer."""
        task = asyncio.create_task(self._read(timeout_s, is_head_only))
        await asyncio.sleep(0)
        return task

    async def _read(self, timeout_s: float, is_head_only: bool) -> Outcome:
        try:
            response = await self.connection.request(
                b"POST / HTTP/1.1\r\n\r\n", b"{}", timeout_s, is_head_only=is_head_only
            )
            body = await whole(response)
        except (LOST, MALFORMED, TimeoutError) as error:
            return type(error)
        return Read(response.status, body)

    async def send(self, pieces: Sequence[bytes]) -> None:
        for piece in pieces:
            if not self.transport.is_closed:
                self.connection.data_received(piece)
            await asyncio.sleep(0)

    def end(self) -> None:
        if not self.transport.is_closed:
            self.transport.is_closed = True
            self.connection.connection_lost(None)


async def whole(response: EngineResponse) -> bytes:
    parts = []
    while part := await response.read_part():
        parts.append(part)
    return b"".join(parts)


async def outcome_of(wire_bytes: Sequence[bytes], *, ends: bool) -> Outcome:
    wire = Wire()
    task = await wire.ask()
    await wire.send(wire_bytes)
    if ends:
        wire.end()
    found = await asyncio.wait_for(task, PATIENCE_S)
    assert wire.transport.is_closed or wire.freed == [wire.connection]
    return replace(found, stays=not wire.transport.is_closed) if isinstance(found, Read) else found


def split(data: bytes, seed: int) -> list[bytes]:
    rng = random.Random(seed)
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(min(len(data), rng.randrange(1, 9))))
    pieces = [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    return [piece for piece in pieces if piece]


def ends(expected: Outcome) -> bool:
    """Return whether the engine has to close the connection for this to be seen."""
    return expected is LOST or (isinstance(expected, Read) and expected.body == b"all of it")


@pytest.mark.parametrize("name", CASES)
async def test_an_answer_in_one_piece_or_in_many(name: str) -> None:
    data, expected = CASES[name]
    assert await outcome_of([data], ends=ends(expected)) == expected
    for seed in range(5):
        assert await outcome_of(split(data, seed), ends=ends(expected)) == expected, seed
    if len(data) < 1000:
        single = [bytes([byte]) for byte in data]
        assert await outcome_of(single, ends=ends(expected)) == expected


@pytest.mark.parametrize("start", [b"2;", b"2\r\nhi\r\n0\r\nA: "])
async def test_what_a_parser_would_keep_of_a_body_is_bounded(start: bytes) -> None:
    """Extensions of a chunk, and a trailer."""
    pieces = [CHUNKED + start, *[b"a" * 2**15] * 3]
    assert await outcome_of(pieces, ends=False) == MALFORMED


def mutations(seed: int, count: int) -> Iterator[bytes]:
    """Return answers that were changed in one to three places."""
    rng = random.Random(seed)
    wires = [data for data, _ in CASES.values() if 0 < len(data) < 1000]
    for _ in range(count):
        data = bytearray(rng.choice(wires))
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(data) + 1)
            how = rng.randrange(3)
            if how == 0:
                data[at : at + 1] = bytes([rng.randrange(256)])
            elif how == 1:
                del data[at : at + rng.randrange(1, 9)]
            else:
                data[at:at] = rng.choice(wires)[:40]
        yield bytes(data)


async def test_what_an_engine_might_send_is_read_alike_in_any_split() -> None:
    rng = random.Random(16)
    for data in mutations(seed=16, count=600):
        pieces = split(data, rng.randrange(2**30))
        at_once, in_pieces = await outcome_of([data], ends=True), await outcome_of(pieces, ends=True)
        if isinstance(at_once, Read) and isinstance(in_pieces, Read):
            assert (at_once.status, at_once.body) == (in_pieces.status, in_pieces.body), data
        else:
            assert at_once == in_pieces, data


@asynccontextmanager
async def served(data: bytes) -> Any:
    """Answer each request with these bytes and the end of the connection."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(data)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


async def as_aiohttp_reads_it(data: bytes) -> tuple[int, bytes] | None:
    """Return status and body, None for any fault: it does not keep them apart as this client does."""
    async with served(data) as url, aiohttp.ClientSession(auto_decompress=False) as session:
        try:
            async with session.post(url, allow_redirects=False) as response:
                return response.status, await response.read()
        except (aiohttp.ClientError, OSError):
            return None


@pytest.mark.parametrize("name", sorted(CASES.keys() - AIOHTTP_DIFFERS))
async def test_aiohttp_reads_the_same(name: str) -> None:
    data, expected = CASES[name]
    found = await asyncio.wait_for(as_aiohttp_reads_it(data), PATIENCE_S)
    assert found == ((expected.status, expected.body) if isinstance(expected, Read) else None)


async def test_what_an_engine_might_send_is_read_as_aiohttp_reads_it() -> None:
    for data in mutations(seed=26, count=120):
        ours, theirs = await outcome_of([data], ends=True), await as_aiohttp_reads_it(data)
        if isinstance(ours, Read) and theirs is not None:
            assert (ours.status, ours.body) == theirs, data


async def test_headers_are_kept_as_they_came() -> None:
    wire = Wire()
    asking = asyncio.create_task(wire.connection.request(b"", b"", TIMEOUT_S))
    await asyncio.sleep(0)
    value = b"\xff\xfe \xe4\xb8\x96"
    head = OK + b"X-Odd: " + value + b"\r\ncontent-TYPE: Text/Event-Stream; charset=x\r\n"
    await wire.send([head + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX-Odd: trailer\r\n\r\n"])
    response = await asking
    assert await whole(response) == b"a"
    assert [value for name, value in response.headers if name == b"X-Odd"] == [value]
    assert response.content_type == "text/event-stream"
    assert response.header(b"x-odd") == value
    assert response.header(b"x-none") is None


async def test_one_request_after_another() -> None:
    wire = Wire()
    for name in ("chunks", "no content", "continues", "trailers", "length"):
        data, expected = ANSWERS[name]
        task = await wire.ask()
        await wire.send([data])
        assert await task == expected
    assert wire.freed == [wire.connection] * 5
    task = await wire.ask()
    wire.end()
    assert await task is LOST
    assert wire.lost == [wire.connection]


async def test_an_answer_that_nobody_asked_for_ends_the_connection() -> None:
    wire = Wire()
    task = await wire.ask()
    await wire.send([ANSWERS["length"][0]])
    assert await task == Read(200, b"hello")
    await wire.send([ANSWERS["length"][0]])
    assert wire.transport.is_closed


async def test_the_answer_to_head_has_no_body() -> None:
    wire = Wire()
    task = await wire.ask(is_head_only=True)
    await wire.send([OK + b"Content-Length: 5\r\n\r\n"])
    assert await task == Read(200, b"")
    # What may follow would be taken for an answer.
    assert wire.transport.is_closed


async def test_an_answer_before_the_end_of_its_request_ends_the_connection() -> None:
    wire = Wire()
    task = await wire.ask()
    wire.transport.unsent_bytes = 5
    await wire.send([b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno"])
    assert await task == Read(413, b"no")
    assert wire.transport.is_closed
    assert wire.freed == []


@pytest.mark.parametrize("sent", [b"", OK, CHUNKED, CHUNKED + b"2\r\nhi\r\n"])
async def test_a_response_that_takes_too_long(sent: bytes) -> None:
    wire = Wire()
    task = await wire.ask(timeout_s=0.02)
    await wire.send([sent] if sent else [])
    assert await asyncio.wait_for(task, PATIENCE_S) is TimeoutError
    assert wire.transport.is_closed


@pytest.mark.parametrize("sent", [b"", CHUNKED + b"2\r\nhi\r\n"])
async def test_a_reader_that_is_cancelled(sent: bytes) -> None:
    wire = Wire()

    async def call() -> None:
        response = await wire.connection.request(b"", b"", TIMEOUT_S)
        try:
            await whole(response)
        finally:
            response.close()

    task = asyncio.create_task(call())
    await asyncio.sleep(0)
    await wire.send([sent] if sent else [])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert wire.transport.is_closed


async def test_closing_a_response_that_has_ended_leaves_its_connection() -> None:
    wire = Wire()
    asking = asyncio.create_task(wire.connection.request(b"", b"", TIMEOUT_S))
    await asyncio.sleep(0)
    await wire.send([ANSWERS["length"][0]])
    response = await asking
    response.close()
    assert not wire.transport.is_closed
    assert await whole(response) == b"hello"


async def test_an_unread_body_pauses_the_engine() -> None:
    wire = Wire()
    asking = asyncio.create_task(wire.connection.request(b"", b"", TIMEOUT_S))
    await asyncio.sleep(0)
    part = b"a" * (connection.MAX_UNREAD_BYTES // 2)
    await wire.send([OK + f"Content-Length: {4 * len(part)}\r\n\r\n".encode(), part, part])
    response = await asking
    assert wire.transport.is_reading
    await wire.send([part])
    assert not wire.transport.is_reading
    assert await response.read_part() == part * 3
    assert wire.transport.is_reading
    await wire.send([part])
    assert (await response.read_part(), await response.read_part()) == (part, b"")
    assert wire.freed == [wire.connection]


async def test_what_takes_long_to_parse_takes_several_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of one byte: 256 KiB of them, as one read brings, would take 10 ms."""
    monkeypatch.setattr(connection, "PARSE_S", 0.0)
    wire = Wire()
    asking = asyncio.create_task(wire.connection.request(b"", b"", TIMEOUT_S))
    await asyncio.sleep(0)
    chunks = connection.PIECE_BYTES
    wire.connection.data_received(CHUNKED + b"1\r\na\r\n" * chunks + b"0\r\n\r\n")
    assert not wire.transport.is_reading
    response = await asking
    assert len(await response.read_part()) < chunks // 2
    rest = await whole(response)
    assert len(rest) > chunks // 2
    assert wire.transport.is_reading
    assert wire.freed == [wire.connection]


async def test_what_is_not_parsed_of_a_closed_connection_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PARSE_S", 0.0)
    wire = Wire()
    asking = asyncio.create_task(wire.connection.request(b"", b"", TIMEOUT_S))
    await asyncio.sleep(0)
    wire.connection.data_received(CHUNKED + b"1\r\na\r\n" * connection.PIECE_BYTES)
    response = await asking
    response.close()
    with pytest.raises(ConnectionResetError):
        await whole(response)
    assert wire.transport.is_closed
    assert wire.freed == []


async def test_a_connection_that_breaks_is_no_end_of_a_body() -> None:
    wire = Wire()
    task = await wire.ask()
    await wire.send([OK + b"\r\nhalf"])
    wire.transport.is_closed = True
    wire.connection.connection_lost(ConnectionResetError("reset"))
    assert await task is LOST


@pytest.mark.parametrize("size", [0, 10, connection.COPIED_BYTES + 1])
async def test_head_and_body_go_out_in_order(size: int) -> None:
    wire = Wire()
    task = asyncio.create_task(wire.connection.request(b"head ", b"b" * size, TIMEOUT_S))
    await asyncio.sleep(0)
    assert wire.transport.written == b"head " + b"b" * size
    wire.end()
    with pytest.raises(ConnectionResetError, match="the engine closed the connection"):
        await task
