"""The red team's attacks: what a hostile tenant, or a client without a key, can send at a gateway.

Each is a coroutine that attacks until it is cancelled or done, and notes the status of every answer that it
reads. All draws come from one seeded generator.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from redteam_engine import FAULTS

CALL_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings")
OTHER_PATHS = ("/v1/score", "/v1/rerank", "/classify", "/pooling", "/tokenize", "/v1/messages/count_tokens")
CONTROL_PATHS = ("/autellix/v1/sessions", "/autellix/v1/engines")
OUR_HEADERS = (
    *("Program-ID", "Session-ID", "Session-Token", "Program-Name", "Thread-ID", "Call-ID", "Parent-IDs"),
    *("Flags", "Final", "Interceptions", "Expected-Calls", "Expected-Tokens"),
)
WIDTH = 16
"""Requests of an attack at once."""
ANSWER_S = 20.0
"""How long an answer is waited for; a hostile client has time."""

SERVER_ANSWERS = (b"Invalid HTTP request received.", b"Service Unavailable")
"""The server's own answers to what is no HTTP, and above its bound on connections."""

RESET = struct.pack("ii", 1, 0)
"""A socket that lingers for no time is reset when it is closed."""

WHOLE_S = 3.0
"""How long all of a connection's answers are waited for, where it may stay open."""


@dataclass(slots=True)
class Target:
    """The gateway under attack, and what it answered."""

    url: str
    key: str
    client: aiohttp.ClientSession
    draw: random.Random
    is_proxied: bool = False
    """Whether a proxy reads the requests first."""
    answers: Counter[str] = field(default_factory=Counter)
    """By attack and status; `no answer` for a connection that ended without one."""
    surprises: list[str] = field(default_factory=list)
    """Answers that no request may get, or errors in no client's format."""
    attack: str = ""

    @property
    def port(self) -> int:
        """The port of the gateway."""
        return int(self.url.rpartition(":")[2])

    def note(self, status: int | str, what: str, body: bytes = b"") -> None:
        """Note an answer; one of 500 or an error of no known form is a surprise."""
        self.answers[f"{self.attack}: {status}"] += 1
        if isinstance(status, int) and status >= 400 and (status == 500 or not _is_error(body)):
            self.surprises.append(f"{self.attack}: {what[:200]}: {status} {body[:200]!r}")

    async def send(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> int | str:
        """Send a request through an ordinary client; return the status of its answer."""
        sent = {"authorization": f"Bearer {self.key}", "content-type": "application/json", **(headers or {})}
        status: int | str
        try:
            async with asyncio.timeout(ANSWER_S):
                async with self.client.request(
                    method, self.url + path, data=body or None, headers=sent
                ) as response:
                    status, content = response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            status, content = f"no answer ({type(error).__name__})", b""
        is_engines = isinstance(status, int) and b"the red team" in content
        self.note(200 if is_engines else status, f"{method} {path} {body[:120]!r} {headers}", content)
        return status

    async def send_raw(self, *parts: bytes, hold_s: float = 0.0) -> None:
        """Send bytes on a connection of their own, and read what comes."""
        received = await self.exchange(*parts, hold_s=hold_s, is_whole=False)
        words = received.split(b" ", 2)
        is_answer = len(words) > 1 and words[1].isdigit()
        status = int(words[1]) if is_answer else "no answer"
        self.note(status, repr(parts[0][:120]), _first_body(received))

    async def exchange(self, *parts: bytes, hold_s: float = 0.0, is_whole: bool = True) -> bytes:
        """Send bytes on a connection of their own; return what comes in all, or first."""
        received = bytearray()
        async with self.connection() as (reader, writer):
            with contextlib.suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(WHOLE_S if is_whole else ANSWER_S):
                    for part in parts:
                        writer.write(part)
                        await writer.drain()
                    await asyncio.sleep(hold_s)
                    received += await reader.read(65536)
                    while is_whole and (more := await reader.read(65536)):
                        received += more
        return bytes(received)

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Open a connection of its own; one that is refused is a connection that ends at once."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield reader, writer
        finally:
            writer.close()

    def head(self, method: str, path: str, *lines: str, has_key: bool = True) -> bytes:
        """Return a request's head."""
        key = [f"authorization: Bearer {self.key}"] if has_key else []
        return "\r\n".join([f"{method} {path} HTTP/1.1", "host: 127.0.0.1", *key, *lines, "\r\n"]).encode()


def _first_body(received: bytes) -> bytes:
    """Return the first answer's body: what follows a request's end may have an answer of its own."""
    head, _, rest = received.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    return rest[: int(length[1])] if length else rest


def _is_error(body: bytes) -> bool:
    """Return whether a body is an error object of OpenAI or Anthropic with a message, or was cut off."""
    if not body or body.strip() in SERVER_ANSWERS:
        return True
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return False
    return bool(isinstance(error, dict) and error.get("message") and error.get("type"))


async def heads(target: Target) -> None:
    """Send heads of every excess, with and without a key."""
    begin = b"GET /healthz HTTP/1.1\r\nhost: a\r\n"
    await target.send_raw(begin + b"a: ", *[b"b" * 65536] * 64)
    await target.send_raw(begin, *[b"a:b\r\n" * 10_000] * 32)
    await target.send_raw(b"GET /", *[b"a" * 65536] * 64)
    await target.send_raw(target.head("GET", "/v1/models?" + "a" * 60_000))
    for _ in range(16):
        await target.send_raw(target.draw.randbytes(200) + b"\r\n\r\n")
        await target.send_raw(target.head("GET", "/v1/models", "a: " + "".join(_characters(target.draw, 50))))
    await target.send_raw(
        target.head("POST", "/v1/completions", "content-length: 4", "content-length: 5") + b"1"
    )
    both = target.head("POST", "/v1/completions", "content-length: 4", "transfer-encoding: chunked")
    await target.send_raw(both + b"0\r\n\r\n")


async def bodies(target: Target) -> None:
    """Send bodies that take long to read, under each field that is read."""
    size = 2 * 2**20
    lists, deep = b"[" + b"[]," * (size // 3) + b"[]]", b"[" * 100_000
    numbers = b"[" + b"1," * (size // 2) + b"1]"
    for value in (lists, deep, numbers, b'"' + b"a" * size + b'"', b'{"a":' * 50_000):
        for path, name in (
            ("/v1/chat/completions", b"model"),
            ("/v1/chat/completions", b"messages"),
            ("/v1/completions", b"prompt"),
            ("/v1/messages", b"metadata"),
            ("/v1/responses", b"input"),
            ("/autellix/v1/sessions", b"session_id"),
        ):
            await target.send("POST", path, b'{"' + name + b'": ' + value + b"}")


async def fuzzed_bodies(target: Target) -> None:
    """Send malformed bodies to every endpoint."""
    paths = (*CALL_PATHS, *OTHER_PATHS, *CONTROL_PATHS)
    cases = [(path, fuzzed_body(target.draw)) for path in paths for _ in range(40)]
    await _side_by_side(lambda number: _post(target, *cases[number]), len(cases))


async def fuzzed_headers(target: Target) -> None:
    """Send malformed headers of ours and of other clients."""
    body = b'{"model": "m", "messages": [{"role": "user", "content": "a"}], "prompt": "a", "input": "a"}'
    for _ in range(40):
        names = [f"X-Autellix-{name}" for name in target.draw.sample(OUR_HEADERS, 3)]
        names.append(
            target.draw.choice(["X-Session-ID", "session-id", "traceparent", "x-request-id", "Range"])
        )
        lines = [f"{name}: {fuzzed_header(target.draw)}" for name in names]
        path = target.draw.choice(CALL_PATHS)
        head = target.head("POST", path, f"content-length: {len(body)}", "connection: close", *lines)
        await target.send_raw(head + body)


async def partial_bodies(target: Target) -> None:
    """Announce and send parts of large bodies, and never end them."""
    part = b"10000\r\n" + b" " * 65536 + b"\r\n"

    async def one(number: int) -> None:
        framing = "content-length: 60000000" if number % 2 else "transfer-encoding: chunked"
        path = CALL_PATHS[number % len(CALL_PATHS)]
        parts = [part] * 160 if framing.startswith("transfer") else [b" " * 65536] * 160
        await target.send_raw(target.head("POST", path, framing), *parts, hold_s=0.5)

    await asyncio.gather(*(one(number) for number in range(24)))


async def slow_readers(target: Target) -> None:
    """Begin streams without an end and do not read them."""
    body = b'{"model": "long", "stream": true, "messages": [{"role": "user", "content": "a"}]}'
    head = target.head("POST", "/v1/chat/completions", f"content-length: {len(body)}")
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(48):
            _, writer = await stack.enter_async_context(target.connection())
            writer.write(head + body)
        await asyncio.sleep(2.0)


async def slow_writers(target: Target) -> None:
    """Open connections that send a head byte by byte, and some that send nothing."""
    head = target.head("POST", "/v1/chat/completions", "content-length: 100")
    async with contextlib.AsyncExitStack() as stack:
        writers = [(await stack.enter_async_context(target.connection()))[1] for _ in range(200)]
        for byte in head[:20]:
            for writer in writers[:100]:
                with contextlib.suppress(ConnectionError):
                    writer.write(bytes([byte]))
            await asyncio.sleep(0.05)


async def other_sites(target: Target) -> None:
    """Act as pages of other sites, and as a tenant that is no operator."""
    engine = b'{"url": "http://127.0.0.1:9"}'
    for headers in ({"origin": "http://evil"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}):
        status = await target.send("POST", "/autellix/v1/engines", engine, headers)
        _expect(target, status, {403}, f"{headers}")
    status = await target.send("POST", "/autellix/v1/engines", engine, {"content-type": "text/plain"})
    _expect(target, status, {400, 403}, "text/plain")
    for method, path in (
        ("POST", "/autellix/v1/engines"),
        ("POST", "/autellix/v1/engines/remote-0/drain"),
        ("DELETE", "/autellix/v1/engines/remote-0"),
        ("GET", "/autellix/v1/engines"),
        ("GET", "/autellix/v1/config"),
        ("GET", "/metrics"),
    ):
        _expect(target, await target.send(method, path, engine), {403}, path)


async def others_programs(target: Target) -> None:
    """Try to see, end and join what is another tenant's."""
    for name in ("program-0", "quiet/program-0", "quiet%2Fprogram-0", "..%2Fquiet%2Fprogram-0"):
        for method, rest in (("GET", ""), ("GET", "/why"), ("DELETE", "")):
            status = await target.send(method, f"/autellix/v1/programs/{name}{rest}")
            _expect(target, status, {404}, name)
    for method, rest in (("DELETE", ""), ("POST", "/heartbeat"), ("GET", "/watch")):
        status = await target.send(method, f"/autellix/v1/sessions/session-0{rest}")
        _expect(target, status, {404}, rest)
    body = b'{"model": "m", "messages": [{"role": "user", "content": "a"}]}'
    names = {"X-Autellix-Program-ID": "quiet/program-1", "X-Autellix-Final": "true"}
    await target.send("POST", "/v1/chat/completions", body, names)
    await target.send("POST", "/v1/chat/completions", body, {"X-Autellix-Session-Token": "v1.AAAA"})
    await target.send("POST", "/v1/chat/completions", body, {"X-Autellix-Interceptions": "a=1e308,b=1e308"})


async def many_names(target: Target) -> None:
    """Name a new program, class and agent in each call, with a transcript of its own."""

    async def one(number: int) -> None:
        messages = [{"role": "user", "content": f"{number}"}, {"role": "assistant", "content": "a"}]
        body = json.dumps({"model": f"m{number}", "messages": messages}).encode()
        headers = {} if number % 2 else {"X-Session-ID": f"s{number}", "X-Parent-Session-ID": f"p{number}"}
        headers["X-Autellix-Program-Name"] = f"class-{number}"
        await target.send("POST", "/v1/chat/completions", body, headers)

    await _side_by_side(one, 400)


async def output_limits(target: Target) -> None:
    """Ask for more output than the limit of 64 tokens allows, in every way."""
    said = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
    for more in (
        {"max_tokens": 65},
        {"max_completion_tokens": "300"},
        {"max_tokens": 20, "n": 16},
        {"max_tokens": 20, "best_of": 16},
        {"n": 65},
        {"max_tokens": 64, "max_completion_tokens": 8174},
    ):
        status = await target.send("POST", "/v1/chat/completions", json.dumps({**said, **more}).encode())
        _expect(target, status, {400}, str(more))
    many = {"model": "m", "prompt": ["a"] * 65}
    _expect(target, await target.send("POST", "/v1/completions", json.dumps(many).encode()), {400}, "prompts")


async def many_sessions(target: Target) -> None:
    """Start many sessions at once, and end them."""
    statuses: Counter[int | str] = Counter()

    async def start(number: int) -> None:
        body = json.dumps({"session_id": f"flood-{number}"}).encode()
        statuses[await target.send("POST", "/autellix/v1/sessions", body)] += 1

    async def end(number: int) -> None:
        await target.send("DELETE", f"/autellix/v1/sessions/flood-{number}")

    await _side_by_side(start, 240)
    # On a busy machine an answer may be too late.
    _expect(target, tuple(each for each in statuses if isinstance(each, int)), {(201,)}, "sessions started")
    await _side_by_side(end, 240)


async def many_feeds(target: Target) -> None:
    """Open event feeds and do not read them."""
    head = target.head("GET", "/autellix/v1/events")
    refused = 0
    async with contextlib.AsyncExitStack() as stack:

        async def one(_: int) -> None:
            nonlocal refused
            reader, writer = await stack.enter_async_context(target.connection())
            writer.write(head)
            async with asyncio.timeout(ANSWER_S):
                first = await reader.readexactly(12)
            refused += first == b"HTTP/1.1 503"
            target.note(int(first[9:12]), "feed")

        await _side_by_side(one, 260)
    _expect(target, refused, {260 - 32}, "refused feeds")


async def listings(target: Target) -> None:
    """Ask for long lists, several at once."""

    async def ask() -> None:
        for _ in range(5):
            await target.send("GET", "/autellix/v1/programs?limit=1000")
            await target.send("GET", "/autellix/v1/history?limit=1000")

    await asyncio.gather(*(ask() for _ in range(8)))


async def many_connections(target: Target) -> None:
    """Open connections, send requests on all of them, and leave without reading."""
    head = target.head("GET", "/autellix/v1/programs?limit=1000")
    for _ in range(3):
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(200):
                _, writer = await stack.enter_async_context(target.connection())
                writer.write(head)


async def resets(target: Target) -> None:
    """Open connections, a quarter of them with calls that run, and reset all of them at once."""
    body = b'{"model": "long", "stream": true, "messages": [{"role": "user", "content": "a"}]}'
    call = target.head("POST", "/v1/chat/completions", f"content-length: {len(body)}") + body
    requests = (call, target.head("GET", "/autellix/v1/programs?limit=1000"), b"", b"GET /heal")
    async with contextlib.AsyncExitStack() as stack:
        writers = [(await stack.enter_async_context(target.connection()))[1] for _ in range(200)]
        for number, writer in enumerate(writers):
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.write(requests[number % len(requests)])
        await asyncio.sleep(0.5)
        for writer in writers:
            writer.transport.abort()


async def silent_connections(target: Target) -> None:
    """Open connections that send nothing, or what is no HTTP, faster than they are closed."""
    garbage = (
        b"",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x00" * 200,
    )
    async with contextlib.AsyncExitStack() as stack:
        for number in range(400):
            _, writer = await stack.enter_async_context(target.connection())
            writer.write(garbage[number % len(garbage)])


async def pipelines(target: Target) -> None:
    """Send thousands of requests at once on a connection, and some behind a stream that goes on."""
    get = target.head("GET", "/v1/models")
    small = b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n"
    body = b'{"model": "long", "stream": true, "messages": [{"role": "user", "content": "a"}]}'
    stream = target.head("POST", "/v1/chat/completions", f"content-length: {len(body)}") + body
    for parts in ([get * 2_000] * 4, [small * 7_000] * 4, [small * 12], [stream + small]):
        for _ in range(8):
            await target.send_raw(*parts)


async def chunks(target: Target) -> None:
    """Send chunks of one byte, chunks with long extensions, and trailers that name another key."""
    head = target.head("POST", "/v1/chat/completions", "transfer-encoding: chunked")
    extension = b"1;" + b"a" * 30_000 + b"\r\nx\r\n"
    trailers = b"1\r\n1\r\n0\r\n" + b"authorization: Bearer other\r\n" * 100 + b"\r\n"
    end = b"0\r\n\r\n"
    cases = ([b"1\r\n1\r\n" * 10_000] * 16, [extension] * 100, [trailers])
    await asyncio.gather(*(target.send_raw(head, *parts, end) for parts in cases for _ in range(4)))


async def smuggling(target: Target) -> None:
    """Send requests whose end is where a proxy in front may not see it; a second answer is a hole."""
    hidden = b"GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
    chunked, long = b"0\r\n\r\n" + hidden, hidden
    for lines, body in (
        (("content-length: 5", "transfer-encoding: chunked"), chunked),
        (("transfer-encoding: chunked", f"content-length: {len(chunked)}"), chunked),
        (("content-length: 0", f"content-length: {len(long)}"), long),
        ((f"content-length: +{len(long)}",), long),
        (("content-length: 0x10",), long),
        (("content-length: 1, 1",), long),
        (("content-length: -1",), long),
        (("transfer-encoding: chunked, identity",), chunked),
        (("transfer-encoding: xchunked",), chunked),
        (("transfer-encoding : chunked",), chunked),
        (("transfer-encoding:\x0bchunked",), chunked),
        (("x: a\r\n transfer-encoding: chunked",), chunked),
        (("transfer-encoding: chunked",), b"0;\n\r\n" + hidden),
        (("transfer-encoding: chunked",), b"0\n\n" + hidden),
        (("transfer-encoding: chunked",), b"-1\r\n\r\n" + hidden),
        (("transfer-encoding: chunked",), b"10000000000000000\r\n" + hidden),
    ):
        answer = await target.exchange(target.head("POST", "/v1/chat/completions", *lines) + body)
        if target.is_proxied:
            # It decides where a request ends, and frames it anew.
            continue
        _expect(target, answer.count(b"HTTP/1.1 2"), {0}, f"good answers to {lines}")


async def upgrades(target: Target) -> None:
    """Ask for other protocols; the connection goes on with this one."""
    key = "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ=="
    after = b"GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
    for lines in (
        ("connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13", key),
        ("connection: upgrade, http2-settings", "upgrade: h2c", "http2-settings: AAMAAABkAAQAAP__"),
        ("connection: upgrade", "upgrade: TLS/1.0"),
    ):
        async with target.connection() as (reader, writer), asyncio.timeout(ANSWER_S):
            for head in (target.head("GET", "/healthz", *lines), after):
                writer.write(head)
                _expect(target, (await reader.readuntil(b'"ok"}'))[:12], {b"HTTP/1.1 200"}, lines[1])
    for line in (b"CONNECT a:1 HTTP/1.1", b"TRACE / HTTP/1.1", b"GET * HTTP/1.1", b"GET http://[ HTTP/1.1"):
        await target.send_raw(line + b"\r\nhost: a\r\n\r\n")
    # Nothing may come before the body is known to be wanted; a proxy reads it first.
    head = target.head("POST", "/v1/completions", "content-length: 99999999", "expect: 100-continue")
    expected = {b"413", b"429"} | ({b"100"} if target.is_proxied else set())
    _expect(target, (await target.exchange(head))[9:12], expected, "expect: 100-continue")


async def many_ids(target: Target) -> None:
    """Name new threads, calls, parents and sessions in the same few programs, in every client's way."""
    body = b'{"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "a"}], "user": "%d"}'

    async def one(number: int) -> None:
        headers = {
            "X-Autellix-Program-ID": f"wide-{number % 3}",
            "X-Autellix-Thread-ID": f"thread-{number}",
            "X-Autellix-Call-ID": f"call-{number}",
            "X-Autellix-Session-ID": f"of-{number}",
            "X-Autellix-Parent-IDs": ",".join(f"parent-{number}-{parent}" for parent in range(64)),
            "X-Autellix-Interceptions": ",".join(f"tool-{number}-{tool}=1" for tool in range(16)),
            "X-Autellix-Flags": f"flag-{number}",
            "X-Agent-ID": f"agent-{number}",
            "traceparent": f"00-{number:032x}-{number:016x}-01",
        }
        await target.send("POST", "/v1/chat/completions", body % number, headers)

    await _side_by_side(one, 400)


async def outlines(target: Target) -> None:
    """Send many tools, parts and messages, each time in a new program, to a route that ignores them."""
    tools = (b"1," * 300_000, b"[]," * 150_000, (b'{"a":1,"b":2,"c":3,"d":4},' * 25_000))
    messages = b"1," * 4_095 + b"1"

    async def one(number: int) -> None:
        said = b'{"model": "m", "prompt": "a", "tools": [%s1], "messages": [%s]}'
        headers = {"X-Autellix-Program-ID": f"outline-{number}"}
        await target.send("POST", "/v1/completions", said % (tools[number % len(tools)], messages), headers)

    await _side_by_side(one, 24)


async def queries(target: Target) -> None:
    """Ask the endpoints that read with ids and parameters of every kind."""
    ids = (
        *("a", "", "%00", "..%2f..%2fetc", "%ff%fe", "%F0%9F%98%80", "a/b/c", "%25s", "{0}", "*"),
        "a" * 3_000,
    )
    paths = [
        f"/autellix/v1/{kind}{rest}"
        for name in ids
        for kind in (f"programs/{name}", f"history/{name}", f"sessions/{name}")
        for rest in ("", "/why", "/timeline")
    ]
    values = ("-1", "0", "1001", "1e9", "9" * 400, "", "a5", "i99999999999999999999", "%00", "true", "ended")
    paths += [
        f"/autellix/v1/{path}?{name}={value}"
        for path in ("programs", "history", "events", "engines")
        for name in ("limit", "after", "state", "format", "since")
        for value in values
        if path != "events"
    ]
    await _side_by_side(lambda number: _get(target, paths[number]), len(paths))


async def engine_answers(target: Target) -> None:
    """Have the engine answer with every fault, in every dialect."""
    statuses: Counter[int | str] = Counter()

    async def one(path: str, name: str, *, is_streaming: bool) -> None:
        said: dict[str, Any] = {"model": f"fault-{name}", "max_tokens": 8, "stream": is_streaming}
        said["messages" if path in ("/v1/chat/completions", "/v1/messages") else "prompt"] = []
        if name == "status-500":
            # The engine's own errors pass unchanged.
            return
        status = await target.send("POST", path, json.dumps(said).encode())
        # Calls of the path before may be open still, and the tenant may have 64.
        _expect(target, status, {200, 429, 502, 503}, f"{path} {name}")
        statuses[status] += 1

    for path in CALL_PATHS:
        await asyncio.gather(
            *(one(path, name, is_streaming=is_streaming) for name in FAULTS for is_streaming in (False, True))
        )
    _expect(target, statuses[502] > statuses[429], {True}, "more faults of the engine than refused calls")


ATTACKS: Mapping[str, Callable[[Target], Awaitable[None]]] = {
    attack.__name__: attack
    for attack in (
        *(heads, bodies, fuzzed_bodies, fuzzed_headers, partial_bodies, slow_readers),
        *(slow_writers, other_sites, others_programs, many_names, listings, output_limits),
        *(many_sessions, many_feeds, many_connections, resets, silent_connections, pipelines),
        *(chunks, smuggling, upgrades, many_ids, outlines, queries, engine_answers),
    )
}

CONNECTION_LEVEL = frozenset(
    {
        *("heads", "partial_bodies", "slow_readers", "slow_writers", "many_connections", "resets"),
        *("silent_connections", "pipelines", "chunks", "smuggling", "upgrades"),
    }
)
"""Attacks with connections and bytes, which a proxy stops; the others are requests of a tenant."""

_VALUES: tuple[bytes, ...] = (
    b"null",
    b"true",
    b"-1",
    b"0",
    b"1e999",
    b"1" * 5000,
    b"NaN",
    b'""',
    b'"\xff\xfe"',
    b'"\\ud800"',
    b'"\\u0000"',
    b"[]",
    b"{}",
    b"[[[]]]",
    b"[" * 3000 + b"]" * 3000,
    b'{"a":' * 3000 + b"1" + b"}" * 3000,
    b'"{\\"session_id\\": ' + b"[" * 3000 + b'"',
    b'[{"role": 1, "content": {}}]',
    b'[{"role": "assistant", "content": [{"text": 7}]}, {"role": "user"}]',
    b'"a b/../c\\n"',
    b"tru",
)
_NAMES: list[bytes] = (
    b"model messages prompt input stream n best_of max_tokens max_completion_tokens "
    b"max_output_tokens metadata user tools system instructions vllm_xargs extra_body cache_salt "
    b"session_id program_id job_id is_last_step prompt_cache_key use_beam_search url name "
    b"report_port pid client \xff a\\ud800"
).split()


def fuzzed_body(draw: random.Random) -> bytes:
    """Return a body that is no JSON, or has values of any kind under the names that are read."""
    kind = draw.random()
    if kind < 0.1:
        return draw.randbytes(draw.randrange(1, 400))
    fields = [
        b'"' + draw.choice(_NAMES) + b'": ' + _nested(draw, draw.choice(_VALUES))
        for _ in range(draw.randrange(1, 6))
    ]
    body = b"{" + b", ".join(fields) + b"}"
    return body[: draw.randrange(1, len(body))] if kind < 0.2 else body


def fuzzed_header(draw: random.Random) -> str:
    """Return a header's value of any kind."""
    values = (
        *("", " ", "-", ",", "a,b,,c", "a=1e308,b=1e308", "a=nan", "a=-1", "1e999", "0", "true,false"),
        "9" * 400,
    )
    return draw.choice((*values, "x" * 5000, "".join(_characters(draw, 40))))


def _nested(draw: random.Random, value: bytes) -> bytes:
    names = (b"session_id", b"user_id", b"program_id")
    return b'{"' + draw.choice(names) + b'": ' + value + b"}" if draw.random() < 0.3 else value


def _characters(draw: random.Random, count: int) -> list[str]:
    return [chr(draw.choice([draw.randrange(32, 127), draw.randrange(160, 256)])) for _ in range(count)]


async def _post(target: Target, path: str, body: bytes) -> None:
    await target.send("POST", path, body)


async def _get(target: Target, path: str) -> None:
    await target.send("GET", path)


async def _side_by_side(one: Callable[[int], Awaitable[None]], count: int) -> None:
    """Do something with each number, some at a time."""
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            await one(number)

    await asyncio.gather(*(work() for _ in range(WIDTH)))


def _expect(target: Target, found: object, expected: Any, what: str) -> None:
    if found not in expected:
        target.surprises.append(f"{target.attack}: {what}: {found}, expected {expected}")
