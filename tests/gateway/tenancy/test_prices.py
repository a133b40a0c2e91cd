"""What each form of an answer costs its tenant, and that every request counts."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.fakes.engine import FakeBehaviour
from tests.gateway.calls.test_bad_answers import BODIES, gateway
from tests.gateway.usage import check_usage
from tests.raw_engine import OK, STREAM, chunk, whole

from autellix_backend.gateway.calls.dialects import DIALECTS
from autellix_backend.observe.settled_call import SettledCall
from autellix_backend.settings import TenantLimits

CHAT, RESPONSES, MESSAGES, EMBEDDINGS = (
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
)
STATED = 12
BYTES = b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\n"
METADATA = b'metadata: {"data": [], "usage": {"prompt_tokens": 12, "total_tokens": 12}}\r\n'
DELTA = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'
STOP = b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"


def chat(usage: str) -> bytes:
    return whole(b'{"choices": [], "usage": %s}' % usage.encode())


def stream(*events: bytes) -> bytes:
    return STREAM + b"".join(map(chunk, events)) + b"0\r\n\r\n"


def prompt_of(path: str, **fields: Any) -> int:
    return len(json.dumps({**BODIES[path], **fields})) // 4


@pytest.mark.parametrize(
    ("path", "answer", "price"),
    [
        pytest.param(CHAT, chat('{"prompt_tokens": 5, "completion_tokens": 7}'), STATED, id="whole numbers"),
        pytest.param(CHAT, chat('{"prompt_tokens": 5.0, "completion_tokens": 7.0}'), STATED, id="floats"),
        pytest.param(CHAT, chat('{"prompt_tokens": "5", "completion_tokens": "7"}'), STATED, id="texts"),
        pytest.param(RESPONSES, chat('{"input_tokens": 5, "output_tokens": 7}'), STATED, id="response"),
        pytest.param(MESSAGES, chat('{"input_tokens": 5, "output_tokens": 7}'), STATED, id="message"),
        pytest.param(EMBEDDINGS, chat('{"prompt_tokens": 12, "completion_tokens": null}'), STATED, id="null"),
        pytest.param(EMBEDDINGS, whole(b"\x00" * 90, BYTES + METADATA), STATED, id="bytes"),
        pytest.param(EMBEDDINGS, whole(b"\x00" * 90, BYTES), prompt_of(EMBEDDINGS), id="bytes, none"),
        pytest.param(CHAT, whole(b'{"text": "%s"}' % (b"a" * 988)), prompt_of(CHAT) + 250, id="none"),
        pytest.param(CHAT, chat('{"prompt_tokens": -5}'), prompt_of(CHAT) + 11, id="negative"),
        pytest.param(CHAT, whole(b"{}", b"HTTP/1.1 400 x\r\n"), 0, id="refused"),
        pytest.param(CHAT, whole(b"<html>", OK), prompt_of(CHAT), id="unusable"),
    ],
)
async def test_every_answer_has_a_price(serve: Any, path: str, answer: bytes, price: int) -> None:
    async with gateway(serve, limits=TenantLimits(day_tokens=10**6)) as (rig, raw, settled):
        raw.parts = [answer]
        async with rig.client.post(rig.url + path, json=BODIES[path]) as response:
            await response.read()
        await rig.settled()
    assert [call.price_tokens for call in settled] == [price]


@pytest.mark.parametrize(
    ("events", "price"),
    [
        pytest.param(
            [DELTA, STOP, b'data: {"usage": {"prompt_tokens": 5, "completion_tokens": 7}}\n\n', DONE],
            STATED,
            id="stated",
        ),
        pytest.param([DELTA, DELTA, STOP, DONE], prompt_of(CHAT, stream=True) + 3, id="events"),
        pytest.param([DELTA, DELTA, STOP], prompt_of(CHAT, stream=True) + 3, id="without its last event"),
        pytest.param([DELTA], prompt_of(CHAT, stream=True) + 1, id="broken off"),
        pytest.param([b'data: {"error": {"message": "m", "code": 500}}\n\n'], 0, id="an error"),
        pytest.param(
            [DELTA, b'data: {"error": "m"}\n\n'], prompt_of(CHAT, stream=True) + 1, id="a late error"
        ),
    ],
)
async def test_every_stream_has_a_price(serve: Any, events: list[bytes], price: int) -> None:
    async with gateway(serve, limits=TenantLimits(day_tokens=10**6)) as (rig, raw, settled):
        raw.parts = [stream(*events)]
        async with rig.client.post(rig.url + CHAT, json={**BODIES[CHAT], "stream": True}) as response:
            await response.read()
        await rig.settled()
    assert [call.price_tokens for call in settled] == [price]


@pytest.mark.parametrize("row", DIALECTS, ids=lambda row: f"{row.method} {row.path}")
async def test_every_route_to_an_engine_counts(serve: Any, row: Any) -> None:
    path = row.path.replace("{response_id}", "resp_1").replace("{model_id:path}", "m")
    async with serve(limits=TenantLimits(requests_per_minute=1), clock=lambda: 0.0) as rig:
        statuses = []
        for _ in range(2):
            async with rig.client.request(row.method, rig.url + path, json={"model": "m"}) as response:
                statuses.append(response.status)
                await response.read()
        await rig.settled()
        check_usage(rig.limiter)
    assert (statuses[0] != 429, statuses[1]) == (True, 429)


async def test_a_burst_does_not_overdraw_the_day(serve: Any) -> None:
    """The same calls one after the other would pass until 100 tokens are used."""
    body = {**BODIES[CHAT], "max_tokens": 7}
    async with gateway(serve, limits=TenantLimits(day_tokens=100)) as (rig, raw, settled):
        raw.parts, raw.stays = [chat('{"prompt_tokens": 5, "completion_tokens": 7}')], True
        raw.may_answer.clear()

        async def call() -> int:
            async with rig.client.post(rig.url + CHAT, json=body) as response:
                return int(response.status)

        calls = [asyncio.create_task(call()) for _ in range(50)]
        done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        assert {task.result() for task in done} == {429}
        raw.may_answer.set()
        statuses = await asyncio.gather(*calls)
        await rig.settled()
    assert set(statuses) == {200, 429}
    assert sum(call.price_tokens for call in settled) <= 100 + STATED


async def test_short_answers_make_no_room_for_a_burst_of_long_ones(serve: Any) -> None:
    settled: list[SettledCall] = []
    limits = TenantLimits(day_tokens=3000)
    async with serve(FakeBehaviour(output_tokens=400), limits=limits) as rig:
        rig.app.state.gateway.registry.subscribe(on_settled=settled.append)
        for _ in range(20):
            await rig.chat(max_tokens=1)
        await asyncio.gather(*(rig.chat(max_tokens=400) for _ in range(50)))
    assert sum(call.price_tokens for call in settled) < 2 * 3000


async def test_long_texts_of_a_tenant_reach_tokenizers_one_by_one(serve: Any, wait_until: Any) -> None:
    text = {"model": "m", "prompt": "a" * 300_000}
    async with serve(FakeBehaviour()) as rig:
        routes = {getattr(route, "path", ""): route for route in rig.app.router.routes}
        lock = routes["/tokenize"].app._turns[""]
        await lock.acquire()
        waiting = asyncio.create_task(rig.client.post(rig.url + "/tokenize", json=text).__aenter__())
        async with rig.client.post(rig.url + "/tokenize", json={"model": "m", "prompt": "a"}) as response:
            await response.read()
        assert not waiting.done()
        lock.release()
        async with await waiting as response:
            await response.read()
