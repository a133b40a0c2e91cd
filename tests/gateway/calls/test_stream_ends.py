"""How streams end: with the dialect's last event, without it, with an error, or in the middle."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from tests.gateway.calls.test_bad_answers import BODIES, EVENT, gateway
from tests.raw_engine import STREAM, chunk

from autellix_backend.gateway.engines import upstream
from autellix_backend.gateway.tenancy.limiter import charge_of
from autellix_backend.observe.settled_call import SettledCall

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
STOP = b'data: {"choices": [{"index": 0, "finish_reason": "stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"
USAGE = b'data: {"usage": {"prompt_tokens": 30, "completion_tokens": 2}}\n\n'
ERROR = b'data: {"error": {"message": "no memory"}}\n\n'
END = b"0\r\n\r\n"


async def ask(
    serve: Any, parts: Sequence[bytes], *, stays: bool, path: str = CHAT
) -> tuple[int, bytes, SettledCall]:
    async with gateway(serve) as (rig, raw, settled):
        raw.parts, raw.stays = [STREAM, *parts], stays
        async with rig.client.post(rig.url + path, json={**BODIES[path], "stream": True}) as response:
            content = await response.read()
        await rig.settled()
    [call] = settled
    return response.status, content, call


@pytest.mark.parametrize("stays", [True, False], ids=["left open", "reset"])
@pytest.mark.parametrize("last", [[DONE], [b"data: [DO", b"NE]\n", b"\n"], [USAGE + DONE]], ids=str)
async def test_the_last_event_ends_an_answer(serve: Any, last: list[bytes], stays: bool) -> None:
    parts = [chunk(EVENT), *[chunk(part) for part in last]]
    _, content, call = await ask(serve, parts, stays=stays)
    assert content.endswith(DONE)
    assert b"error" not in content
    assert call.outcome == "ok"


async def test_a_connection_left_open_is_closed(
    serve: Any, wait_until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "END_WAIT_S", 0.0)
    async with gateway(serve) as (rig, raw, _):
        raw.parts, raw.stays = [STREAM, chunk(EVENT + DONE)], True
        await rig.client.post(rig.url + CHAT, json={**BODIES[CHAT], "stream": True})
        # That of the health checks may stay.
        await wait_until(lambda: raw.requests == 1 and raw.open_connections <= 1)


@pytest.mark.parametrize(
    ("before", "tokens", "service_s"),
    [([], 3, 0.005 * (2 * 3)), ([USAGE], 32, 0.005 * (30 + 2 * 2))],
    ids=["events", "usage"],
)
async def test_what_ran_of_a_stream_that_breaks_off_is_charged(
    serve: Any, before: list[bytes], tokens: int, service_s: float
) -> None:
    _, content, call = await ask(serve, [chunk(EVENT) * 3, *map(chunk, before)], stays=False)
    assert b'"engine_unavailable"' in content
    assert call.outcome == "unavailable"
    assert call.receipt.service_s >= service_s
    # Without usage the prompt is estimated.
    assert charge_of(call) == (tokens if before else tokens + call.body_bytes // 4, False)


async def test_a_stream_without_usage_costs_its_events_and_its_prompt(serve: Any) -> None:
    _, _, call = await ask(serve, [chunk(EVENT) * 5, chunk(DONE), END], stays=True)
    assert (call.outcome, charge_of(call)) == ("ok", (5 + call.body_bytes // 4, False))


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
async def test_a_stream_that_ends_without_its_last_event_is_no_success(serve: Any, path: str) -> None:
    _, content, call = await ask(serve, [chunk(EVENT), chunk(b'data: {"cut'), END], stays=True, path=path)
    assert call.outcome == "truncated"
    assert b"ended its stream without the last event" in content
    assert b"cut" not in content
    assert (b"event: error\n" in content) is (path == MESSAGES)
    assert (b"event: response.failed\n" in content) is (path == RESPONSES)


@pytest.mark.parametrize("last", [b"", b"\n", b"\n\n"], ids=["cut", "a line", "an event"])
async def test_a_stream_whose_choices_end_needs_no_last_event(serve: Any, last: bytes) -> None:
    whole = chunk(STOP), chunk(USAGE.strip() + last), END
    _, content, call = await ask(serve, [chunk(EVENT), *whole], stays=True)
    assert (call.outcome, charge_of(call)) == ("ok", (32, False))
    assert content == EVENT + STOP + USAGE.strip() + (last if last == b"\n\n" else last + b"\n\n")


async def test_an_error_event_of_an_engine_is_relayed_and_no_success(serve: Any) -> None:
    _, content, call = await ask(serve, [chunk(EVENT), chunk(ERROR), chunk(DONE), END], stays=True)
    assert call.outcome == "engine_error"
    assert content.count(b"error") == 1
    assert content.endswith(DONE)


async def test_a_compressed_stream_is_named(serve: Any) -> None:
    async with gateway(serve) as (rig, raw, settled):
        raw.parts, raw.stays = [STREAM[:-2] + b"content-encoding: gzip\r\n\r\n", chunk(b"\x1f\x8b")], True
        async with rig.client.post(rig.url + CHAT, json={**BODIES[CHAT], "stream": True}) as response:
            error = json.loads(await response.read())["error"]
        await rig.settled()
    assert (response.status, [call.outcome for call in settled]) == (502, ["bad_answer"])
    assert "compressed" in error["message"]
