"""Streams whose engine is silent: their head and blank lines reach the client until the first token."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import openai
import pytest
from tests.gateway.calls.test_bad_answers import BODIES, EVENT, gateway
from tests.raw_engine import STREAM, RawEngine, chunk, whole

from autellix_backend.gateway.calls import reply

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
DONE = b"data: [DONE]\n\n"
STOP = b'event: message_stop\ndata: {"type": "message_stop"}\n\n'
START = {"id": "m", "type": "message", "role": "assistant", "content": [], "model": "m"}
HELD_S = 0.5


@pytest.fixture(autouse=True)
def short_periods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply, "HEAD_WAIT_S", 0.01)
    monkeypatch.setattr(reply, "BLANK_PERIOD_S", 0.01)


def silent(raw: RawEngine, *parts: bytes) -> None:
    """Have an engine keep its answer back."""
    raw.may_answer.clear()
    raw.parts, raw.stays = parts, True


def body(path: str) -> dict[str, Any]:
    return {**BODIES[path], "stream": True}


def stream(rig: Any, path: str = CHAT) -> Any:
    headers = {"X-Autellix-Program-ID": "p"}
    return rig.client.post(rig.url + path, json=body(path), headers=headers)


async def read_blanks(response: Any, count: int = 3) -> None:
    for _ in range(count):
        assert await response.content.readuntil(b"\n\n") == b"\n\n"


async def test_a_stream_begins_before_its_engine_does(serve: Any) -> None:
    async with gateway(serve) as (rig, raw, settled):
        silent(raw, STREAM, chunk(EVENT), chunk(DONE), b"0\r\n\r\n")
        async with stream(rig) as response:
            assert (response.status, response.content_type) == (200, "text/event-stream")
            assert response.headers["X-Autellix-Program-ID"] == "p"
            assert response.headers["X-Autellix-Engine"] == "remote-0"
            await read_blanks(response)
            raw.may_answer.set()
            rest = (await response.read()).lstrip(b"\n")
        await rig.settled()
    assert rest.startswith(EVENT + b": autellix {")
    assert rest.endswith(DONE)
    assert [call.outcome for call in settled] == ["ok"]


async def test_a_call_whose_engine_closes_while_it_waits_is_not_sent_again(serve: Any) -> None:
    """It may have run."""
    async with gateway(serve) as (rig, raw, settled):
        silent(raw)
        raw.stays, raw.later_parts = False, [[STREAM, chunk(EVENT + DONE)]]
        async with stream(rig) as response:
            await read_blanks(response)
            raw.may_answer.set()
            rest = await response.read()
        assert b"may have run" in rest
        assert b'"retryable":false' in rest
        await rig.settled()
    assert ([call.outcome for call in settled], raw.requests) == (["bad_answer"], 1)


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_what_an_engine_refuses_late_is_an_error_event(serve: Any, path: str) -> None:
    refusal = b'{\n"type": "error", "error": {"type": "invalid", "message": "too long"}}'
    async with gateway(serve) as (rig, raw, settled):
        silent(raw, whole(refusal, b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"))
        async with stream(rig, path) as response:
            await read_blanks(response)
            raw.may_answer.set()
            content = await response.read()
        await rig.settled()
    [event] = [event for event in content.split(b"\n\n") if b"data: " in event]
    name, _, data = event.rpartition(b"data: ")
    assert json.loads(data)["error"]["message"] == "too long"
    assert (name == b"event: error\n") is (path == MESSAGES)
    assert [call.outcome for call in settled] == ["rejected"]


async def test_an_engine_that_fails_late_ends_the_stream_with_an_error_event(serve: Any) -> None:
    async with gateway(serve, upstream_timeout_s=0.3) as (rig, raw, settled):
        silent(raw)
        async with stream(rig) as response:
            content = await response.read()
        raw.may_answer.set()
        await rig.settled()
    assert b'"engine_timeout"' in content
    assert [call.outcome for call in settled] == ["timeout"]


async def test_a_client_may_disconnect_while_it_waits(serve: Any, wait_until: Any) -> None:
    async with gateway(serve) as (rig, raw, settled):
        silent(raw)
        async with stream(rig) as response:
            await read_blanks(response)
        await wait_until(lambda: bool(settled))
        raw.may_answer.set()
    assert [call.outcome for call in settled] == ["aborted"]


async def test_the_official_clients_wait(serve: Any) -> None:
    start = b"event: message_start\ndata: " + json.dumps({"type": "message_start", "message": START}).encode()
    async with gateway(serve) as (rig, raw, _):
        silent(raw, STREAM, chunk(EVENT), chunk(DONE), b"0\r\n\r\n")
        asyncio.get_running_loop().call_later(HELD_S, raw.may_answer.set)
        async with openai.AsyncOpenAI(base_url=rig.url + "/v1", api_key="k", max_retries=0) as client:
            chunks: Any = await client.chat.completions.create(**body(CHAT))
            assert len([each async for each in chunks]) == 1
        silent(raw, STREAM, chunk(start + b"\n\n"), chunk(STOP), b"0\r\n\r\n")
        asyncio.get_running_loop().call_later(HELD_S, raw.may_answer.set)
        async with anthropic.AsyncAnthropic(base_url=rig.url, api_key="k", max_retries=0) as client:
            events: Any = await client.messages.create(**body(MESSAGES))
            assert [event.type async for event in events] == ["message_start", "message_stop"]
        silent(raw, whole(b'{"error": {"message": "too long"}}', b"HTTP/1.1 400 Bad Request\r\n"))
        asyncio.get_running_loop().call_later(HELD_S, raw.may_answer.set)
        async with openai.AsyncOpenAI(base_url=rig.url + "/v1", api_key="k", max_retries=0) as client:
            chunks = await client.chat.completions.create(**body(CHAT))
            with pytest.raises(openai.APIError, match="too long"):
                assert not [each async for each in chunks]
