"""Odd ASGI traffic through the middleware and beside it: applications and clients see the same.

Seeded random requests, with bodies in pieces, bodies that are no calls, clients that leave, and applications
that answer early, in odd messages, or fail.
"""

from __future__ import annotations

import asyncio
import codecs
import itertools
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.vllm_plugin.vllm_app import CHAT, TOOL_CALL, TOOLS, USER, Message, chat_answer

from autellix_backend.vllm_plugin.middleware import CALL_PATHS, ProgramMiddleware

SCRIPTS_OF_A_SEED = 60
PATHS = (*sorted(CALL_PATHS), *sorted(CALL_PATHS), f"{CHAT}/", "/v1/models", "/metrics", "/", "")
CALL: Message = {"model": "m", "messages": [USER], "tools": TOOLS, "stream": True}
LONG = "é" * 3_000_000
BODIES = (
    json.dumps(CALL).encode(),
    json.dumps(CALL, indent=2, ensure_ascii=False).encode(),
    json.dumps({**CALL, "messages": [{"role": "user", "content": LONG}]}).encode(),
    json.dumps({**CALL, "vllm_xargs": {"mine": [1.5], "autellix_program": "forged"}}).encode(),
    json.dumps({**CALL, "vllm_xargs": None, "use_beam_search": True}).encode(),
    json.dumps({**CALL, "vllm_xargs": "text"}).encode(),
    json.dumps({**CALL, "vllm_xargs": [1]}).encode(),
    json.dumps({"model": "m", "input": "on", "previous_response_id": "resp_0a1b2c3d4e5f"}).encode(),
    json.dumps({"messages": [{"role": "tool", "tool_call_id": "call_a1b2c3d4e5"}]}).encode(),
    codecs.BOM_UTF8 + json.dumps(CALL).encode(),
    json.dumps(CALL).encode("utf-16"),
    json.dumps(CALL).encode("utf-32"),
    b'{"model":"m","model":"n","temperature":NaN,"seed":1e999}',
    b'{"a":' + b"9" * 5000 + b',"b":"\\ud800","\\ud800":1}',
    b"[" * 3000 + b"]" * 3000,
    b'{"messages":' + b"[" * 3000 + b"]" * 3000 + b"}",
    b'{"messages": [{"role": "user", "content": "\xff"}]}',
    b'{"messages": [',
    b"{} {}",
    b"[]",
    b"null",
    b"",
    b"\x00",
    b"--boundary\r\ncontent-disposition: form-data\r\n\r\n{}",
)
HEADERS = (
    (b"content-type", b"application/json"),
    (b"content-encoding", b"gzip"),
    (b"content-encoding", b"identity"),
    (b"transfer-encoding", b"chunked"),
    (b"authorization", b"Bearer \xff"),
    (b"x-request-id", b"mine"),
    (b"x-autellix-program-id", b"p"),
    (b"x-autellix-program-id", b""),
    (b"x-autellix-program-id", b"\x00" * 2000),
    (b"x-autellix-session-id", b"s"),
    (b"x-autellix-flags", b"implicit"),
    (b"x-autellix-call-id", b"c"),
    (b"x-autellix-parent-ids", b"-"),
    (b"x-autellix-parent-ids", b",,"),
    (b"x-autellix-final", b"true"),
    (b"x-autellix-priority", b"batch"),
    (b"x-session-id", b"s"),
    (b"baggage", b"=,;"),
)
EVENT = b"data: " + json.dumps({"choices": [{"delta": {"tool_calls": [TOOL_CALL]}}]}).encode() + b"\n\n"
ANSWERS = (
    chat_answer(),
    chat_answer(TOOL_CALL),
    EVENT * 3 + b"data: [DONE]\n\n",
    EVENT.replace(b"\n", b"\r\n"),
    b'data: {"response": "',
    b'{"error": "refused"}',
    b"\xff" * 1000,
    b"",
)
OWN = (b"x-autellix-",)


@dataclass(kw_only=True)
class Script:
    """What a client sends, and how an application answers it."""

    scope: Message
    incoming: list[Message]
    outgoing: list[Message]
    reads: bool
    """Whether the application reads the request."""
    fails_after: int | None
    """After how many messages the application fails; None for never."""
    leaves_after: int | None
    """After how many messages the client leaves, so that sending fails."""


@dataclass
class Outcome:
    """What both ends have seen of a request."""

    seen: list[Any] = field(default_factory=list)
    """The application's: scope and body."""
    sent: list[Message] = field(default_factory=list)
    """The client's."""
    error: str | None = None


def cut(data: bytes, chance: random.Random) -> list[bytes]:
    places = sorted(chance.randrange(len(data) + 1) for _ in range(chance.choice((0, 0, 1, 4))))
    ends = [0, *places, len(data)]
    return [data[start:end] for start, end in itertools.pairwise(ends)]


def script(chance: random.Random) -> Script:
    scope: Message = {
        "type": chance.choice(("http",) * 12 + ("websocket", "lifespan", "other")),
        "method": chance.choice(("POST",) * 6 + ("GET", "OPTIONS", "DELETE", "HEAD", "PUT", "get")),
        "path": chance.choice(PATHS),
        "root_path": chance.choice(("", "", "/api")),
        "headers": [each for each in HEADERS if chance.random() < 0.2],
        "extensions": {"http.response.trailers": {}},
    }
    if chance.random() < 0.5:
        scope["path"] = scope["root_path"] + scope["path"]
    parts = cut(chance.choice(BODIES), chance)
    incoming: list[Message] = [{"type": "http.request", "body": each, "more_body": True} for each in parts]
    incoming[-1] = {"type": "http.request", "body": parts[-1]}
    if not parts[-1] and chance.random() < 0.5:
        incoming[-1] = {"type": "http.request"}
    if chance.random() < 0.2:
        del incoming[chance.randrange(len(incoming)) :]
    incoming += [{"type": "http.disconnect"}] * 3
    start: Message = {"type": "http.response.start", "status": chance.choice((200, 200, 201, 304, 404, 500))}
    kinds = (b"application/json", b"text/event-stream", b"Text/Event-Stream; x", b"", None)
    if (kind := chance.choice(kinds)) is not None:
        start["headers"] = [(b"Content-Type", kind), (b"content-type", b"other")]
    answer = cut(chance.choice(ANSWERS), chance)
    outgoing = [start, *({"type": "http.response.body", "body": each, "more_body": True} for each in answer)]
    outgoing += [{"type": "http.response.body"}]
    if chance.random() < 0.1:
        outgoing[-1]["more_body"] = False
        outgoing.append({"type": "http.response.trailers", "headers": [(b"a", b"b")]})
    if chance.random() < 0.1:
        outgoing.insert(0, {"type": "http.response.debug", "info": {}})
    return Script(
        scope=scope,
        incoming=incoming,
        outgoing=outgoing,
        reads=chance.random() < 0.9,
        fails_after=chance.choice((None, None, None, 0, 1, 2)),
        leaves_after=chance.choice((None, None, None, 0, 1, 2)),
    )


async def play(given: Script, through: Callable[[Any], Any]) -> Outcome:
    found = Outcome()
    incoming = [dict(message) for message in given.incoming]

    async def receive() -> Message:
        return incoming.pop(0) if len(incoming) > 1 else incoming[0]

    async def send(message: Any) -> None:
        if len(found.sent) == given.leaves_after:
            raise OSError("the client has left")
        found.sent.append(dict(message))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body, is_whole = b"", not given.reads
        while given.reads:
            message = await receive()
            if message["type"] == "http.disconnect":
                break
            body += message.get("body", b"")
            if not message.get("more_body"):
                is_whole = (await receive())["type"] == "http.disconnect"
                break
        found.seen += [_shown(scope), _content(body), is_whole]
        for number, message in enumerate(given.outgoing):
            if number == given.fails_after:
                raise RuntimeError("the application fails")
            await send(dict(message))

    try:
        await through(app)(dict(given.scope), receive, send)
    except (OSError, RuntimeError) as error:
        found.error = repr(error)
    return found


def _shown(scope: Message) -> Message:
    """Return a scope without what changes with the length of its body, and the id of a beam search."""
    changed = (b"content-length", b"transfer-encoding", b"x-request-id")
    headers = [(name, value) for name, value in scope["headers"] if name not in changed]
    return {**scope, "headers": headers}


def _content(body: bytes) -> object:
    """Return a body as vLLM reads it, without our arguments."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return body
    if isinstance(fields, dict):
        given = fields.pop("vllm_xargs", None) or {}
        if isinstance(given, dict):
            given = {name: value for name, value in given.items() if not name.startswith("autellix_")}
        fields["vllm_xargs"] = given
    return json.dumps(fields)


def _without_ours(message: Message) -> Message:
    if message["type"] != "http.response.start":
        return message
    headers = [(name, value) for name, value in message.get("headers", ()) if not name.startswith(OWN)]
    return {**message, "headers": headers}


@pytest.mark.parametrize("seed", range(20))
async def test_applications_and_clients_see_the_same_as_without_the_middleware(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(seed)
    inner: list[Any] = []
    middleware = ProgramMiddleware(lambda *given: inner[-1](*given), lambda: 0.0)

    def through(app: Any) -> Any:
        inner.append(app)
        return middleware

    for number in range(SCRIPTS_OF_A_SEED):
        given = script(chance)
        plain, ours = await play(given, lambda app: app), await play(given, through)
        assert ours.seen == plain.seen, number
        assert [_without_ours(each) for each in ours.sent] == [_without_ours(each) for each in plain.sent]
        assert ours.error == plain.error, number
        counts = await middleware._calls.store.counts()
        assert counts.active_calls == 0
    assert [record for record in caplog.records if record.exc_info] == []


async def test_many_clients_that_leave_at_once_leave_nothing_open() -> None:
    """Each is cancelled at whatever point it has reached, as a server does with the tasks of a connection."""
    chance = random.Random(0)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(5):
            await asyncio.sleep(0)
            await send({"type": "http.response.body", "body": EVENT, "more_body": True})

    middleware = ProgramMiddleware(app, lambda: 0.0)

    async def call(steps: int) -> None:
        async def receive() -> Message:
            await asyncio.sleep(0)
            return {"type": "http.request", "body": json.dumps(CALL).encode()}

        async def send(_: Any) -> None:
            await asyncio.sleep(0)

        scope = {"type": "http", "method": "POST", "path": CHAT, "headers": []}
        task = asyncio.create_task(middleware(scope, receive, send))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    await asyncio.gather(*(call(chance.randrange(25)) for _ in range(300)))
    assert (await middleware._calls.store.counts()).active_calls == 0
