"""Two real engines behind one gateway: programs that keep their engine find their context in its cache."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.serving import listening

from autellix_backend.assembly import create_app
from autellix_backend.engines.base import Engine
from autellix_backend.engines.factory import make_engines
from autellix_backend.settings import BalancerSettings, EngineSettings, GatewaySettings, Settings
from autellix_lab.demo.model import DEMO_MODEL_NAME

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

CHAT = "/v1/chat/completions"
PROGRAMS = 3
TURNS = 4
WORDS_A_TURN = 150


@asynccontextmanager
async def two_replicas(model: Path, folder: Path) -> AsyncIterator[list[Engine]]:
    """Run two engines, each on its share of the cores."""
    settings = EngineSettings(
        model=str(model),
        served_model_name=DEMO_MODEL_NAME,
        replicas=2,
        max_num_seqs=4,
        state_dir=folder,
        extra_args=("--block-size", "32"),
    )
    engines = make_engines(Settings(engine=settings))
    try:
        await asyncio.gather(*(engine.start() for engine in engines))
        yield engines
    finally:
        await asyncio.gather(*(engine.stop() for engine in engines))


async def cached_share(engines: Sequence[Engine], balancer: str) -> tuple[float, dict[str, set[str]]]:
    """Play chats that grow; return the share of prompt tokens that were cached, and who ran where."""
    settings = Settings(
        gateway=GatewaySettings(report_wait_s=5.0),
        balancer=BalancerSettings(name=balancer, threshold_tokens=100),
    )
    cached = read = 0
    ran: dict[str, set[str]] = {}
    async with listening(create_app(settings, *engines)) as url, aiohttp.ClientSession() as client:
        messages: dict[str, list[dict[str, str]]] = {f"{balancer}-{at}": [] for at in range(PROGRAMS)}
        for turn in range(TURNS):
            for program, history in messages.items():
                # Words of its own: nothing of another program, or of another run, is in any cache.
                history.append({"role": "user", "content": f"{program} {turn} " * (WORDS_A_TURN // 2)})
                told = await chat(client, url, program, history)
                history.append(told["choices"][0]["message"])
                ran.setdefault(program, set()).add(told["engine"])
                cached += told["autellix"]["cached_tokens"]
                read += told["autellix"]["prompt_tokens"]
    return cached / read, ran


async def chat(
    client: aiohttp.ClientSession, url: str, program: str, history: Sequence[dict[str, str]]
) -> dict[str, Any]:
    body = {"model": DEMO_MODEL_NAME, "messages": history, "max_tokens": 8, "temperature": 0}
    headers = {"X-Autellix-Program-ID": program}
    async with client.post(url + CHAT, json=body, headers=headers) as response:
        assert response.status == 200, await response.text()
        told: dict[str, Any] = await response.json()
        told["choices"][0]["message"] = {
            "role": "assistant",
            "content": told["choices"][0]["message"]["content"],
        }
        return {**told, "engine": response.headers["X-Autellix-Engine"]}


async def test_programs_that_keep_their_engine_find_more_in_its_cache(
    demo_model: Path, tmp_path: Path
) -> None:
    async with two_replicas(demo_model, tmp_path) as engines:
        turns, ran = await cached_share(engines, "round_robin")
        assert all(names == {"replica-0", "replica-1"} for names in ran.values())
        for balancer in ("locality", "locality_bounded"):
            kept, ran = await cached_share(engines, balancer)
            assert all(len(names) == 1 for names in ran.values())
            assert kept > 1.2 * turns, f"{balancer} {kept:.3f}, round_robin {turns:.3f}"
