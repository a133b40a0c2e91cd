"""The middleware in front of an application that answers as vLLM does."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.middleware import Middleware
from tests.identity.recorded import RECORDED, Sent
from tests.serving import listening
from tests.vllm_plugin.import_only_agents import AGENTS, TURNS
from tests.vllm_plugin.vllm_app import (
    CHAT,
    RESPONSE_ID,
    RESULT,
    TOOL_CALL,
    TOOLS,
    USER,
    Client,
    Message,
    Vllm,
    chat_answer,
)

from autellix_backend.gateway.calls.dialects import DIALECTS
from autellix_backend.identity.aliases import PROGRAM_SOURCES
from autellix_backend.reports.call_arguments import read_identity
from autellix_backend.vllm_plugin import middleware
from autellix_backend.vllm_plugin.direct_calls import SESSION_TTL_S
from autellix_backend.vllm_plugin.middleware import CALL_PATHS, ProgramMiddleware

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def vllm() -> Vllm:
    return Vllm()


@pytest.fixture
def client(vllm: Vllm, caplog: pytest.LogCaptureFixture) -> Iterator[Client]:
    client = Client(vllm)
    yield client
    # What it could not do, it would only log.
    faults = [str(record.exc_info) for record in caplog.get_records("call") if record.exc_info]
    assert all("planted" in fault for fault in faults)


def test_the_paths_are_those_where_the_gateway_states_programs() -> None:
    expected = {each.path for each in DIALECTS if each.makes_call and each.takes_identity}
    assert expected == CALL_PATHS


@pytest.mark.parametrize("sent", RECORDED, ids=lambda sent: sent.source)
async def test_each_alias_names_the_program_of_a_call(sent: Sent, client: Client) -> None:
    if sent.source in PROGRAM_SOURCES:
        assert sent.value == (await client.call(USER, headers=sent.headers, **sent.body)).program_id
        assert client.headers["x-autellix-identity-source"] == sent.source
        assert client.headers["x-autellix-program-id"] == sent.value


@pytest.mark.parametrize("path", sorted(CALL_PATHS))
async def test_the_scheduler_reads_who_a_call_is_of(path: str, client: Client) -> None:
    headers = {
        "X-Autellix-Program-ID": "p",
        "X-Autellix-Program-Name": "agent",
        "X-Autellix-Thread-ID": "2",
        "X-Autellix-Call-ID": "c2",
        "X-Autellix-Parent-IDs": "c0,c1",
        "X-Autellix-Priority": "batch",
        "X-Autellix-Final": "true",
    }
    await client.send({"model": "m", "input": "hello"}, headers=headers, path=path)
    found = client.vllm.identity
    assert (found.program_id, found.call_id, found.is_last, found.gateway) == ("p", "c2", True, "")
    arrival = found.arrival
    assert (arrival.thread_id, arrival.parents, arrival.hints.priority) == ("2", ("c0", "c1"), "batch")
    assert (arrival.hints.class_name, arrival.is_identified) == ("/agent", True)
    # The engine keeps these itself.
    assert (arrival.service_s, arrival.inherited_s, arrival.age_s, arrival.work) == (None,) * 4


async def test_the_rest_of_a_request_is_as_it_came(client: Client) -> None:
    body = b'{"model":"m", "messages" : [ {"role":"user","content":"\\u00e9"} ], "seed":1e2}'
    headers = {"X-Request-ID": "mine", "Transfer-Encoding": "chunked", "Authorization": "Bearer key"}
    await client.send(body, headers=headers)
    data, found = client.vllm.bodies[0], dict(client.vllm.scopes[0]["headers"])
    assert b'"messages":[ {"role":"user","content":"\\u00e9"} ],"seed":1e2' in data
    assert found[b"content-length"] == str(len(data)).encode()
    assert (found[b"authorization"], found[b"x-request-id"]) == (b"Bearer key", b"mine")
    assert b"transfer-encoding" not in found


async def test_forged_arguments_are_dropped_and_the_client_s_own_stay(client: Client) -> None:
    forged = {"autellix_program": "other", "autellix_service_s": 0, "autellix_new": 1, "mine": [1]}
    await client.call(USER, headers={"X-Autellix-Program-ID": "p"}, vllm_xargs=forged)
    assert client.vllm.identity.program_id == "p"
    assert client.vllm.xargs["mine"] == [1]
    assert not {"autellix_service_s", "autellix_new"} & client.vllm.xargs.keys()


async def test_forged_arguments_are_dropped_beside_a_malformed_header(client: Client) -> None:
    found = await client.call(
        USER, headers={"X-Autellix-Call-ID": "\x00"}, vllm_xargs={"autellix_program": "other"}
    )
    assert (found.arrival.is_identified, found.program_id == "other") == (False, False)


@pytest.mark.parametrize(
    "body", [b"", b"nothing", b"[]", b'{"vllm_xargs": 1}', b'{"messages": [}', b"\xff\xfe", b'{"a": NaN']
)
async def test_what_is_no_call_is_left_for_vllm_to_refuse(body: bytes, client: Client) -> None:
    client.vllm.status = 400
    assert (await client.send(body))[0] == 400
    assert client.vllm.bodies == [body]


async def test_a_compressed_or_long_body_passes_unread(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.send(b'{"model": "m"}', headers={"Content-Encoding": "gzip"})
    monkeypatch.setattr(middleware, "MAX_BODY_BYTES", 10)
    await client.send(b'{"model": "m"}')
    assert client.vllm.bodies == [b'{"model": "m"}'] * 2


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/models"),
        ("POST", "/v1/embeddings"),
        ("POST", "/tokenize"),
        ("GET", CHAT),
        ("POST", "/v1/x"),
    ],
)
async def test_other_routes_are_untouched_but_for_the_mark(method: str, path: str, client: Client) -> None:
    body = b'{"input": "hello", "vllm_xargs": {"autellix_program": "p"}}'
    await client.send(body, method=method, path=path)
    assert client.vllm.bodies == [body]
    assert "x-autellix-version" in client.headers


@pytest.mark.parametrize("kind", ["lifespan", "websocket"])
async def test_what_is_not_http_passes(kind: str, client: Client) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope, receive, send))

    async def nothing(*_: Any) -> Any:
        pytest.fail("nobody asked")

    await ProgramMiddleware(app)({"type": kind}, nothing, nothing)
    assert seen == [({"type": kind}, nothing, nothing)]


async def test_a_client_that_disconnects_within_its_body_is_seen_by_vllm(client: Client) -> None:
    incoming: list[Message] = [
        {"type": "http.request", "body": b"{", "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> Message:
        return incoming.pop(0)

    async def send(_: Any) -> None:
        pytest.fail("nobody is there")

    await client.app(client.scope("POST", CHAT, {}, 9), receive, send)
    assert client.vllm.is_disconnected


async def test_a_client_that_disconnects_within_the_answer_leaves_nothing_open(client: Client) -> None:
    gone = asyncio.Event()

    async def leave() -> None:
        gone.set()
        raise asyncio.CancelledError

    client.vllm.before_part = leave
    with pytest.raises(asyncio.CancelledError):
        await client.call(USER, headers={"X-Autellix-Program-ID": "p"})
    assert gone.is_set()
    counts = await client.app._calls.store.counts()
    assert (counts.programs, counts.active_calls) == (1, 0)


async def test_a_refused_call_leaves_no_trace(client: Client) -> None:
    client.vllm.status = 401
    await client.call(USER, headers={"X-Autellix-Program-ID": "p", "X-Autellix-Session-ID": "s"})
    counts = await client.app._calls.store.counts()
    assert (counts.programs, counts.sessions) == (0, 0)
    assert client.headers["x-autellix-program-id"] == "p"


KEY = {"Authorization": "Bearer sesame"}


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer other"}, {"Authorization": "sesame"}])
async def test_nothing_is_read_or_ended_without_a_key_of_vllm(headers: dict[str, str], vllm: Vllm) -> None:
    client = Client(vllm, keys=["sesame"])
    names = {"X-Autellix-Program-ID": "p", "X-Autellix-Session-ID": "s"}
    await client.call(USER, headers={**KEY, **names})

    async def unread() -> Message:
        pytest.fail("a body was asked for")

    sent: list[Message] = []

    async def send(message: Any) -> None:
        sent.append(message)

    for method, path in (
        ("POST", CHAT),
        ("POST", "/autellix/v1/sessions"),
        ("POST", "/autellix/v1/sessions/s/heartbeat"),
        ("DELETE", "/autellix/v1/sessions/s"),
        ("DELETE", "/autellix/v1/programs/p"),
    ):
        sent.clear()
        await client.app(client.scope(method, path, {**headers, **names}, 2), unread, send)
        assert sent[0]["status"] == 401
    counts = await client.app._calls.store.counts()
    assert (counts.programs, counts.sessions, len(vllm.bodies)) == (1, 1, 1)
    assert (await client.send(path="/autellix/v1/programs/p", method="DELETE", headers=KEY))[0] == 204


async def test_a_fault_of_ours_lets_each_request_pass_as_it_came(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: Any) -> Any:
        raise RuntimeError("planted")

    body = json.dumps({"messages": [USER]}).encode()
    for name in ("accept", "note_answer", "close", "identify"):
        monkeypatch.setattr(client.app._calls, name, fail)
        assert await client.send(body) == (200, chat_answer())
    assert client.vllm.bodies[-1] == body
    assert len([record for record in caplog.records if "planted" in str(record.exc_info)]) == 1


@pytest.mark.parametrize("fails_at", ["start", "request"])
async def test_a_check_of_keys_that_fails_lets_each_call_pass_as_it_came_and_ends_nothing(
    fails_at: str, vllm: Vllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    class AuthenticationMiddleware:
        def __init__(self, *_: Any, **__: Any) -> None:
            if fails_at == "start":
                raise TypeError("planted")

        def __call__(self, *_: Any) -> Awaitable[None]:
            raise RuntimeError("planted")

    client = Client(vllm)
    server = client.scope("POST", CHAT, {}, 0)["app"]
    server.user_middleware.append(Middleware(AuthenticationMiddleware))
    body = json.dumps({"messages": [USER]}).encode()
    assert await client.send(body) == (200, chat_answer())
    assert vllm.bodies == [body]
    assert await end(client, "programs/p") == 401


def streamed(*events: Message) -> list[bytes]:
    return [f"data: {json.dumps(event)}\n\n".encode() for event in events] + [b"data: [DONE]\n\n"]


def cut(parts: Iterable[bytes], size: int) -> list[bytes]:
    whole = b"".join(parts)
    return [whole[at : at + size] for at in range(0, len(whole), size)]


CHAT_EVENTS = streamed(
    {"choices": [{"delta": {"content": "hi"}}]},
    {"choices": [{"delta": {"tool_calls": [{**TOOL_CALL, "index": 0}]}}]},
    {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]},
)


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        (b"application/json", [chat_answer(TOOL_CALL)]),
        (b"application/json; charset=utf-8", cut([chat_answer(TOOL_CALL)], 7)),
        (b"text/event-stream; charset=utf-8", CHAT_EVENTS),
        (b"text/event-stream", cut(CHAT_EVENTS, 11)),
        (b"text/event-stream", [b"".join(CHAT_EVENTS)]),
    ],
)
async def test_a_call_that_brings_the_result_of_a_tool_joins_its_program(
    kind: bytes, parts: list[bytes], client: Client
) -> None:
    client.vllm.kind, client.vllm.parts = kind, parts
    first = await client.call(USER, tools=TOOLS)
    assert not (first.is_last or first.arrival.is_identified)
    second = await client.call(USER, RESULT, tools=TOOLS)
    assert second.program_id == first.program_id
    assert second.arrival.is_identified
    assert client.headers["x-autellix-identity-source"] == "answer-id"


async def test_a_stream_s_ids_are_known_before_its_client_has_them(client: Client) -> None:
    client.vllm.kind, client.vllm.parts = b"text/event-stream", CHAT_EVENTS
    known: list[bool] = []

    async def look() -> None:
        source = await client.app._calls.store.find_answer("", ["call_a1b2c3d4e5"], 0.0)
        known.append(source is not None)

    client.vllm.before_part = look
    await client.call(USER, tools=TOOLS)
    assert known == [False, False, True, True]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_response_that_continues_another_joins_its_program(is_stream: bool, client: Client) -> None:
    response = {"object": "response", "id": RESPONSE_ID, "output": []}
    created = {"type": "response.created", "response": response}
    client.vllm.kind = b"text/event-stream" if is_stream else b"application/json"
    client.vllm.parts = streamed(created) if is_stream else [json.dumps(response).encode()]
    await client.send({"input": "hello"}, path="/v1/responses")
    first = client.vllm.identity.program_id
    await client.send({"input": "on", "previous_response_id": RESPONSE_ID}, path="/v1/responses")
    assert client.vllm.identity.program_id == first


async def test_a_message_s_tool_joins_its_program(client: Client) -> None:
    use = {"type": "tool_use", "id": "toolu_a1b2c3d4", "name": "search", "input": {}}
    client.vllm.parts = [json.dumps({"type": "message", "content": [use]}).encode()]
    tools = [{"name": "search", "input_schema": {}}]
    await client.send({"messages": [USER], "tools": tools}, path="/v1/messages")
    first = client.vllm.identity.program_id
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_a1b2c3d4"}]}
    await client.send({"messages": [USER, result], "tools": tools}, path="/v1/messages")
    assert client.vllm.identity.program_id == first


async def test_agents_of_one_process_are_programs_of_their_own(client: Client) -> None:
    """With the client's import alone: it names its process, and which calls a call depends on."""
    process = {"X-Autellix-Program-ID": "process", "X-Autellix-Flags": "implicit"}

    async def step(agent: int, turn: int) -> str:
        use = {**TOOL_CALL, "id": f"call_{agent}a{turn}b{agent}c{turn}d"}
        client.vllm.parts = [chat_answer(use)]
        seen = [USER, {**RESULT, "tool_call_id": f"call_{agent}a{turn - 1}b{agent}c{turn - 1}d"}]
        named = {**process, "X-Autellix-Call-ID": f"c{agent}.{turn}"}
        return (await client.call(*seen[: 1 + bool(turn)], headers=named, tools=TOOLS)).program_id

    programs = [[await step(agent, turn) for agent in range(10)] for turn in range(4)]
    assert programs == [[f"c{agent}.0" for agent in range(10)]] * 4


async def test_so_they_are_with_the_real_client_and_their_ends_go_with_the_next_call(vllm: Vllm) -> None:
    app = ProgramMiddleware(vllm)
    async with listening(app) as url:
        agents = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.vllm_plugin.import_only_agents", url, "m"),
            cwd=ROOT,
            env={**os.environ, "AUTELLIX_BASE_URL": url},
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await agents.communicate()
    programs = {program: len(seen) for seen in json.loads(output) for program in seen}
    assert (agents.returncode, list(programs.values())) == (0, [TURNS] * AGENTS)
    client = Client(vllm)
    client.app = app
    assert programs.keys() <= set((await client.call(USER)).ended)


async def test_a_call_outside_of_all_programs_ends_its_own(client: Client) -> None:
    headers = {
        "X-Autellix-Program-ID": "process",
        "X-Autellix-Flags": "implicit",
        "X-Autellix-Call-ID": "c1",
        "X-Autellix-Parent-IDs": "-",
    }
    found = await client.call(USER, headers=headers)
    assert (found.program_id, found.is_last, found.arrival.is_identified) == ("c1", True, False)


async def end(client: Client, path: str) -> int:
    return (await client.send(path=f"/autellix/v1/{path}", method="DELETE"))[0]


async def test_the_end_of_a_program_goes_with_the_next_call(client: Client) -> None:
    for program in "p", "q":
        await client.call(USER, headers={"X-Autellix-Program-ID": program})
    assert [await end(client, f"programs/{program}") for program in "pxp"] == [204, 404, 404]
    client.vllm.status = 503
    other = {"X-Autellix-Program-ID": "q"}
    assert (await client.call(USER, headers=other)).ended == ("p",)
    # The engine has not had it.
    client.vllm.status = 200
    assert (await client.call(USER, headers=other)).ended == ("p",)
    assert (await client.call(USER, headers=other)).ended == ()


async def test_a_program_that_calls_again_has_not_ended(client: Client) -> None:
    named = {"X-Autellix-Program-ID": "p"}
    await client.call(USER, headers=named)
    await end(client, "programs/p")
    assert (await client.call(USER, headers=named)).ended == ()


async def test_a_program_that_ended_with_its_last_call_is_not_ended_twice(client: Client) -> None:
    await client.call(USER, headers={"X-Autellix-Program-ID": "p", "X-Autellix-Final": "true"})
    assert (await client.call(USER)).ended == ()


async def test_an_unnamed_agent_whose_answer_calls_no_tool_has_ended(client: Client) -> None:
    first = await client.call(USER, tools=TOOLS)
    assert (await client.call(USER, headers={"X-Autellix-Program-ID": "q"})).ended == (first.program_id,)


async def test_the_programs_of_a_session_end_with_it(client: Client) -> None:
    path = "/autellix/v1/sessions"
    status, content = await client.send({"session_id": "s", "client": "c"}, path=path)
    started = json.loads(content)
    assert (status, started["server"], started["session_id"]) == (201, "autellix", "s")
    for program in "p", "q":
        await client.call(USER, headers={"X-Autellix-Program-ID": program, "X-Autellix-Session-ID": "s"})
    assert (await client.send(path=f"{path}/s/heartbeat"))[0] == 200
    assert [await end(client, "sessions/s") for _ in range(2)] == [204, 404]
    assert (await client.call(USER, headers={"X-Autellix-Program-ID": "r"})).ended == ("p", "q")


async def test_a_session_without_heartbeats_ends(client: Client) -> None:
    await client.call(USER, headers={"X-Autellix-Program-ID": "p", "X-Autellix-Session-ID": "s"})
    client.now = SESSION_TTL_S - 1
    await client.send(path="/autellix/v1/sessions/s/heartbeat")
    client.now += 2
    assert (await client.call(USER)).ended == ()
    client.now += SESSION_TTL_S
    assert (await client.call(USER)).ended == ("p",)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "sessions", 400),
        ("GET", "programs", 404),
        ("GET", "sessions/s/watch", 404),
        ("DELETE", "programs", 404),
        ("PUT", "sessions/s", 404),
    ],
)
async def test_what_only_a_gateway_has_is_not_found(
    method: str, path: str, status: int, client: Client
) -> None:
    assert (await client.send(path=f"/autellix/v1/{path}", method=method))[0] == status
    assert client.vllm.scopes == []


async def test_beside_a_gateway_everything_stays_as_it_is(
    vllm: Vllm, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(vllm, {"report_address": "tcp://0.0.0.0:9000"})
    body = b'{"messages": [], "vllm_xargs": {"autellix_program": "p", "autellix_gateway": "g"}}'
    for _ in range(2):
        await client.send(body)
    assert vllm.bodies == [body] * 2
    assert client.headers == {"content-type": "application/json"}
    assert len(caplog.records) == 1


async def test_several_server_processes_are_warned_of(vllm: Vllm, caplog: pytest.LogCaptureFixture) -> None:
    client = Client(vllm, {}, processes=2)
    assert (await client.call(USER, headers={"X-Autellix-Program-ID": "p"})).program_id == "p"
    assert "--api-server-count 1" in caplog.text


async def test_the_requests_of_a_beam_search_have_its_arguments_in_their_ids(client: Client) -> None:
    await client.call(USER, headers={"X-Autellix-Program-ID": "p"}, use_beam_search=True)
    request_id = dict(client.vllm.scopes[0]["headers"])[b"x-request-id"].decode()
    assert read_identity(f"beam_search-{request_id}-01-beam-0", {}, None).program_id == "p"
