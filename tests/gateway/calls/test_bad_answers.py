"""Answers of engines that no client could read: the call is settled once, and its client gets a 502."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.raw_engine import OK, STREAM, RawEngine, chunk, raw_engine, whole

from autellix_backend.engines.base import EngineKind
from autellix_backend.engines.remote import RemoteEngine
from autellix_backend.observe.settled_call import SettledCall

USAGE = b'{"choices": [], "usage": {"prompt_tokens": -5, "completion_tokens": -7}}'
EVENT = b'data: {"choices": []}\n\n'
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"model": "m", "prompt": "hi"},
    "/v1/responses": {"model": "m", "input": "hi"},
    "/v1/messages": {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
    "/v1/embeddings": {"model": "m", "input": "hi"},
}


@asynccontextmanager
async def gateway(serve: Any, **settings: Any) -> AsyncIterator[tuple[Any, RawEngine, list[SettledCall]]]:
    settled: list[SettledCall] = []
    async with raw_engine() as raw:
        engine = RemoteEngine(raw.url, kind=EngineKind.VLLM)
        async with serve(engine=engine, **settings) as rig:
            rig.app.state.gateway.registry.subscribe(on_settled=settled.append)
            yield rig, raw, settled


async def post(rig: Any, path: str) -> tuple[int, dict[str, Any]]:
    async with rig.client.post(rig.url + path, json=BODIES[path]) as response:
        return response.status, await response.json()


def message_of(path: str, answer: dict[str, Any]) -> str:
    error: dict[str, Any] = answer["error"]
    if path == "/v1/messages":
        assert (answer["type"], error["type"]) == ("error", "api_error")
    else:
        assert (error["type"], error["code"]) == ("server_error", "bad_engine_answer")
    return str(error["message"])


@pytest.mark.parametrize("path", BODIES)
async def test_a_status_that_is_no_answer(serve: Any, path: str) -> None:
    statuses = (b"000", b"099", b"101", b"307", b"600", b"999", b"1000")
    async with gateway(serve) as (rig, raw, settled):
        for status in statuses:
            raw.parts = [whole(b"{}", b"HTTP/1.1 " + status + b" x\r\nlocation: http://127.0.0.1:1/\r\n")]
            code, answer = await post(rig, path)
            assert code == 502, status
            assert "engine remote-0 " in message_of(path, answer)
        await rig.settled()
    assert [call.outcome for call in settled] == ["bad_answer"] * len(statuses)


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([b"\x00\x01 hello\r\n\r\n"], id="no head"),
        pytest.param([OK + b"a: " + b"b" * 300_000 + b"\r\n\r\n"], id="large header"),
        pytest.param([OK + b"a: b\r\n" * 20_000 + b"\r\n"], id="many headers"),
        pytest.param([OK + b"content-length: -2\r\n\r\n{}"], id="negative length"),
        pytest.param([whole(b"<html>", OK)], id="no JSON"),
        pytest.param([whole(b'{"choices": [}', OK)], id="broken JSON"),
        pytest.param([whole(b"[1, 2]", OK)], id="no object"),
        pytest.param([whole(b"", OK)], id="nothing"),
        pytest.param([OK + b"content-length: 999999999999\r\n\r\n{"], id="announces too much"),
        pytest.param([OK + b"transfer-encoding: chunked\r\n\r\n"] + [chunk(b" " * 50_000)] * 9, id="endless"),
        pytest.param([OK + b"transfer-encoding: chunked\r\n\r\n", chunk(b"{"), b"zz\r\n"], id="no chunk"),
        pytest.param([STREAM, b"zz\r\n"], id="no chunk in a stream"),
        pytest.param([STREAM, chunk(b"<html>not events</html>")], id="no events"),
        pytest.param([STREAM, chunk(b"\x00\xff\xfe")], id="bytes for events"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_what_no_client_could_read(
    serve: Any, path: str, parts: Sequence[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway(serve, max_answer_bytes=100_000) as (rig, raw, settled):
        raw.parts, raw.stays = parts, True
        code, answer = await post(rig, path)
        await rig.settled()
    assert (code, [call.outcome for call in settled]) == (502, ["bad_answer"])
    assert "engine remote-0 " in message_of(path, answer)


async def test_a_stream_that_breaks_within_ends_with_an_error_event(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway(serve) as (rig, raw, settled):
        raw.parts, raw.stays = [STREAM, chunk(EVENT), b"zz\r\n"], True
        path = "/v1/chat/completions"
        async with rig.client.post(rig.url + path, json=BODIES[path]) as response:
            text = await response.text()
        await rig.settled()
    error = json.loads(text.partition('data: {"error"')[2].join(['{"error"', ""]).partition("\n")[0])["error"]
    assert (error["code"], error["retryable"]) == ("bad_engine_answer", False)
    assert [call.outcome for call in settled] == ["bad_answer"]


async def test_the_last_event_of_a_stream_is_bounded(serve: Any) -> None:
    async with gateway(serve, max_answer_bytes=100_000) as (rig, raw, settled):
        raw.parts, raw.stays = (
            [STREAM, chunk(EVENT), chunk(b"data: [DONE]"), *[chunk(b"x" * 50_000)] * 9],
            True,
        )
        path = "/v1/chat/completions"
        async with rig.client.post(rig.url + path, json=BODIES[path]) as response:
            text = await response.text()
        await rig.settled()
    assert "more than 100000 bytes" in text
    assert [call.outcome for call in settled] == ["bad_answer"]


@pytest.mark.parametrize(
    "usage",
    [
        b'{"prompt_tokens": -5, "completion_tokens": -7}',
        b'{"prompt_tokens": 1e300, "completion_tokens": 7}',
        b'{"prompt_tokens": 99999999999999999999, "completion_tokens": 7}',
        b'{"prompt_tokens": "many", "completion_tokens": null}',
    ],
)
async def test_a_usage_out_of_bounds_counts_as_none(serve: Any, usage: bytes) -> None:
    async with gateway(serve) as (rig, raw, settled):
        raw.parts = [whole(b'{"choices": [], "usage": ' + usage + b"}")]
        code, answer = await post(rig, "/v1/chat/completions")
        await rig.settled()
    assert (code, [call.outcome for call in settled]) == (200, ["ok"])
    assert settled[0].stated_usage is None
    assert answer["autellix"]["service_s"] >= 0


async def test_no_more_of_a_prompt_is_cached_than_there_is(serve: Any) -> None:
    counts = b'{"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 500}}'
    async with gateway(serve) as (rig, raw, settled):
        raw.parts = [whole(b'{"usage": ' + counts + b"}")]
        await post(rig, "/v1/chat/completions")
        await rig.settled()
    assert settled[0].stated_usage is not None
    assert settled[0].stated_usage.cached_tokens == 5


@pytest.mark.parametrize("value", ["世界".encode(), b"\xff\xfe"])
async def test_headers_of_any_bytes_pass_unchanged(serve: Any, value: bytes) -> None:
    async with gateway(serve) as (rig, raw, settled):
        raw.parts = [whole(b"{}", OK + b"x-engine: " + value + b"\r\n")]
        path = "/v1/chat/completions"
        async with rig.client.post(rig.url + path, json=BODIES[path]) as response:
            assert (response.status, dict(response.raw_headers)[b"x-engine"]) == (200, value)
        await rig.settled()
    assert [call.outcome for call in settled] == ["ok"]


async def test_a_subscriber_that_fails_leaves_no_call_open(serve: Any) -> None:
    def fail(_: SettledCall) -> None:
        raise RuntimeError("a subscriber")

    async with gateway(serve) as (rig, raw, settled):
        rig.app.state.gateway.registry._on_settled.insert(0, fail)
        raw.parts = [whole(b"{}")]
        assert (await post(rig, "/v1/chat/completions"))[0] == 200
        assert (await rig.store.counts()).active_calls == 0
    assert [call.outcome for call in settled] == ["ok"]


async def test_a_passed_through_request_gets_a_502_too(serve: Any) -> None:
    async with gateway(serve) as (rig, raw, _):
        raw.parts = [whole(b"{}", b"HTTP/1.1 999 x\r\n")]
        async with rig.client.post(rig.url + "/tokenize", json={"prompt": "a"}) as response:
            assert response.status == 502
            assert (await response.json())["error"]["code"] == "bad_engine_answer"


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(whole(b'{"logprob": NaN, "least": -Infinity}'), id="NaN"),
        pytest.param(whole(b'{"text": "\\ud83d"}'), id="half a surrogate pair"),
        pytest.param(whole(b"{}", OK + b"metadata: " + b"x" * 100_000 + b"\r\n"), id="long header"),
    ],
)
async def test_what_clients_can_read_is_passed_on(serve: Any, answer: bytes) -> None:
    content = answer.partition(b"\r\n\r\n")[2]
    async with gateway(serve) as (rig, raw, settled):
        raw.parts = [answer]
        path = "/v1/chat/completions"
        async with rig.client.post(rig.url + path, json=BODIES[path], max_field_size=200_000) as response:
            assert (response.status, content[:-1] in await response.read()) == (200, True)
        await rig.settled()
    assert [call.outcome for call in settled] == ["ok"]


async def test_an_error_names_no_inner_objects(serve: Any) -> None:
    async with gateway(serve) as (rig, raw, _):
        for part in (OK + b"no colon\r\n\r\n", OK + b"a: " + b"secret" * 100_000 + b"\r\n\r\n"):
            raw.parts = [part]
            _, answer = await post(rig, "/v1/chat/completions")
            message = message_of("/v1/chat/completions", answer)
            assert "broke the rules of HTTP" in message
            assert len(message) < 100
