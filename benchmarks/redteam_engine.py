"""The red team's engine: it answers at once with what it was asked, or with the bytes of a fault.

The model of a call chooses: `fault-NAME` is a fault, `long` a stream without an end, anything else an answer
that repeats the text of the call, by which its client knows it for its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from multiprocessing.connection import Connection

import uvloop

OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
ENDLESS_PARTS = 2_000
PART_PERIOD_S = 0.05
"""Fifty such streams would else keep the engine from its other answers."""
MAX_READ_BYTES = 65_536


def whole(body: bytes, head: bytes = OK) -> bytes:
    """Return an answer with its length."""
    return head + f"content-length: {len(body)}\r\n\r\n".encode() + body


def chunk(data: bytes) -> bytes:
    """Return one chunk of a body."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def _status(code: str) -> bytes:
    return whole(b"{}", f"HTTP/1.1 {code} x\r\ncontent-type: application/json\r\n".encode())


def _usage(text: str) -> bytes:
    return whole(b'{"choices": [], "usage": ' + text.encode() + b"}")


FAULTS: dict[str, bytes] = {
    **{f"status-{code}": _status(code) for code in ("000", "099", "101", "307", "600", "999", "1000", "500")},
    "nothing": b"",
    "no-head": b"\x00\x01\x02 hello\r\n\r\n",
    "half-a-head": b"HTTP/1.1 200 OK\r\nconte",
    "many-headers": OK + b"a: b\r\n" * 20_000 + b"\r\n",
    "large-header": OK + b"a: " + b"b" * 500_000 + b"\r\n\r\n{}",
    "headers-of-any-bytes": whole(b"{}", OK + "x-engine: 世界\r\nx-other: ".encode() + b"\xff\xfe\r\n"),
    "negative-length": OK + b"content-length: -2\r\n\r\n{}",
    "short": OK + b"content-length: 20\r\n\r\n{}",
    "too-long": OK + b"content-length: 99999999999\r\n\r\n{",
    "half-a-chunk": CHUNKED + b"ff\r\nabc",
    "no-chunk": CHUNKED + chunk(b"{") + b"zz\r\n",
    "no-json": whole(b"<html>error</html>"),
    "half-of-json": whole(b'{"choices": [{"message": '),
    "deep-json": whole(b'{"a":' * 5_000 + b"1" + b"}" * 5_000),
    "no-events": STREAM + chunk(b"<html>") + LAST_CHUNK,
    "bytes-for-events": STREAM + chunk(b"\x00\xff\xfe\x01") + LAST_CHUNK,
    "no-chunk-in-a-stream": STREAM + chunk(b'data: {"choices": []}\n\n') + b"zz\r\n",
    "half-a-stream": STREAM + chunk(b'data: {"choices": []}\n\ndata: {"cho'),
    "usage-negative": _usage('{"prompt_tokens": -5, "completion_tokens": -70000}'),
    "usage-huge": _usage('{"prompt_tokens": 1e300, "completion_tokens": 99999999999999999999999}'),
    "usage-of-text": _usage('{"prompt_tokens": "many", "completion_tokens": [], "x": null}'),
    "cached-more-than-all": _usage(
        '{"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 5000}}'
    ),
}


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection."""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"POST"):
                writer.write(whole(b"{}"))
                continue
            body = _fields(await reader.readexactly(_length(head)))
            model = body.get("model")
            name = model.removeprefix("fault-") if isinstance(model, str) else ""
            if name in FAULTS:
                writer.write(FAULTS[name])
                await writer.drain()
                break
            if name == "long":
                await _send_without_end(writer)
                break
            writer.write(_stream(body) if body.get("stream") is True else whole(_said(body)))
            await writer.drain()
    with contextlib.suppress(ConnectionError):
        writer.close()


def _fields(data: bytes) -> dict[str, object]:
    """Return a call's fields; none of what takes long to read, because it is the gateway that is tried."""
    if len(data) > MAX_READ_BYTES:
        return {}
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


async def _send_without_end(writer: asyncio.StreamWriter) -> None:
    writer.write(STREAM)
    for _ in range(ENDLESS_PARTS):
        if writer.is_closing():
            break
        writer.write(chunk(b"data: " + b"x" * 32_768 + b"\n\n"))
        await writer.drain()
        await asyncio.sleep(PART_PERIOD_S)


def _said(body: dict[str, object]) -> bytes:
    text = json.dumps(body.get("messages") or body.get("input") or body.get("prompt"))
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "text": text}
    usage = {"prompt_tokens": 4, "completion_tokens": 4, "input_tokens": 4, "output_tokens": 4}
    return json.dumps({"id": "a", "choices": [choice], "usage": usage}).encode()


def _stream(body: dict[str, object]) -> bytes:
    events = [b"data: " + _said(body) + b"\n\n"] * 4
    return STREAM + b"".join(map(chunk, [*events, b"data: [DONE]\n\n"])) + LAST_CHUNK


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0


def serve(report: Connection) -> None:
    """Serve in this process until the other end of the connection is closed."""

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, limit=2**24)
        report.send(server.sockets[0].getsockname()[1])
        with contextlib.suppress(EOFError):
            await asyncio.to_thread(report.recv)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
