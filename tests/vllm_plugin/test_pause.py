"""vLLM's own pause over HTTP, while our order has calls parked in the middle of their answers."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from tests.waiting import PATIENCE_S

from autellix_backend.engines.replica import VllmReplica
from autellix_lab.demo.model import DEMO_MODEL_NAME

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

SLOTS = 4
LONG_TOKENS = 240
SHORT_TOKENS = 160


@dataclass(slots=True)
class Stream:
    """A call whose answer is read as it is written."""

    name: str
    max_tokens: int
    service_s: float
    """What its program has used before, in seconds."""
    text: str = ""
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self, client: aiohttp.ClientSession, url: str) -> str:
        body = {
            "model": DEMO_MODEL_NAME,
            "prompt": f"{self.name} tells of queues and slots",
            "max_tokens": self.max_tokens,
            "ignore_eos": True,
            "temperature": 0.0,
            "stream": True,
            "vllm_xargs": {
                "autellix_program": self.name,
                "autellix_call": self.name,
                "autellix_service_s": self.service_s,
                "autellix_program_service_s": self.service_s,
            },
        }
        async with client.post(url + "/v1/completions", json=body) as response:
            assert response.status == 200, await response.text()
            async for line in response.content:
                if line.startswith(b"data: {"):
                    self.text += json.loads(line.removeprefix(b"data: "))["choices"][0]["text"]
                    self.begun.set()
        return self.text


async def post(client: aiohttp.ClientSession, url: str, **query: str) -> dict[str, Any]:
    async with client.post(url, params=query) as response:
        answer: dict[str, Any] = await response.json()
        assert response.status == 200, answer
        return answer


async def begin_twice_as_many_as_slots(
    client: aiohttp.ClientSession, url: str, group: asyncio.TaskGroup
) -> list[asyncio.Task[str]]:
    """Return calls that have all begun: the first half has lost its slots to the other."""
    reading: list[asyncio.Task[str]] = []
    for name, max_tokens, service_s in (("old", LONG_TOKENS, 100.0), ("new", SHORT_TOKENS, 0.0)):
        streams = [Stream(f"{name}-{number}", max_tokens, service_s) for number in range(SLOTS)]
        reading += [group.create_task(stream.read(client, url)) for stream in streams]
        await asyncio.gather(*(stream.begun.wait() for stream in streams))
    return reading


async def test_a_pause_that_waits_ends_with_the_calls_that_were_parked(live_engine: VllmReplica) -> None:
    """Eight calls have begun on four slots: the pause lets all end, and a ninth begins after it."""
    url = live_engine.base_url
    async with (
        aiohttp.ClientSession() as client,
        asyncio.timeout(4 * PATIENCE_S),
        asyncio.TaskGroup() as group,
    ):
        alone = [Stream(f"old-{number}", LONG_TOKENS, 0.0) for number in range(SLOTS)]
        expected = await asyncio.gather(*(stream.read(client, url) for stream in alone))

        reading = await begin_twice_as_many_as_slots(client, url, group)
        while any(task.done() for task in reading):
            # This process was too slow: no request waits for a slot any more.
            await asyncio.gather(*reading)
            reading = await begin_twice_as_many_as_slots(client, url, group)

        pausing = group.create_task(post(client, url + "/pause", mode="wait"))
        late = Stream("late", 8, 0.0)
        # Nobody resumes: what the pause leaves parked would never end.
        answers = await asyncio.gather(*reading)
        assert await pausing == {"status": "paused"}
        assert answers[:SLOTS] == expected

        reading_late = group.create_task(late.read(client, url))
        async with client.get(url + "/is_paused") as response:
            assert (await response.json())["is_paused"] is True
        assert not late.begun.is_set()
        await post(client, url + "/resume")
        assert await reading_late
