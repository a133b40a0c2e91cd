"""A gateway in front of several fake engines, and what a test asks of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
from fastapi import FastAPI
from tests.fakes.engine import FakeBehaviour, FakeEngine
from tests.serving import listening
from tests.waiting import PATIENCE_S, until

from autellix_backend.assembly import create_app
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.policies import make_policy
from autellix_backend.settings import BalancerSettings, EngineSettings, GatewaySettings, Settings
from autellix_backend.stores.memory import MemoryStore

CHAT = "/v1/chat/completions"
ENGINES = "/autellix/v1/engines"
PROGRAM = "X-Autellix-Program-ID"


@dataclass(slots=True)
class PoolRig:
    """A gateway in front of several fake engines."""

    url: str
    client: aiohttp.ClientSession
    engines: list[FakeEngine]
    app: FastAPI

    async def chat(self, program: str = "p", content: str = "hello", **fields: Any) -> tuple[int, str]:
        """Make a call; return its status and the engine that its receipt names."""
        body = {"model": "m", "messages": [{"role": "user", "content": content}], **fields}
        async with self.client.post(self.url + CHAT, json=body, headers={PROGRAM: program}) as response:
            await response.read()
            return response.status, response.headers.get("X-Autellix-Engine", "")

    def close_gates(self) -> asyncio.Event:
        """Have the engines answer further calls only once the returned event is set."""
        gate = asyncio.Event()
        for engine in self.engines:
            engine.behaviour = replace(engine.behaviour, gate=gate)
        return gate

    async def chats_at_once(
        self, gate: asyncio.Event, calls: Sequence[tuple[str, str]]
    ) -> list[tuple[int, str]]:
        """Make calls by program and content that are all open before any is answered; return the answers."""
        tasks = [asyncio.create_task(self.chat(*call)) for call in calls]
        await until(lambda: sum(member.open_calls for member in self.app.state.gateway.pool) == len(tasks))
        gate.set()
        return await asyncio.gather(*tasks)

    async def ask(self, method: str, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
        """Ask for something below the list of engines."""
        async with self.client.request(method, self.url + ENGINES + path, json=body or None) as response:
            return response.status, await response.json()

    async def text(self, path: str) -> tuple[int, str]:
        """Read a page."""
        async with self.client.get(self.url + path) as response:
            return response.status, await response.text()

    async def names(self) -> list[str]:
        """Return the engines by name."""
        return [engine["name"] for engine in (await self.ask("GET", ""))[1]["engines"]]


@asynccontextmanager
async def serving_pool(
    *behaviours: FakeBehaviour,
    balancer: str = "round_robin",
    threshold_tokens: int = 50,
    is_owned: bool = True,
    **engine: Any,
) -> AsyncIterator[PoolRig]:
    """Serve one fake engine for each behaviour; at the end nothing may be left of calls and programs."""
    engines = [
        FakeEngine(behaviour, name=f"fake-{at}", is_owned=is_owned) for at, behaviour in enumerate(behaviours)
    ]
    for fake in engines:
        await fake.start()
    settings = Settings(
        gateway=GatewaySettings(recovery_wait_s=PATIENCE_S),
        engine=EngineSettings(**engine),
        scheduler=SchedulerConfig(policy="plas"),
        balancer=BalancerSettings(name=balancer, threshold_tokens=threshold_tokens),
    )
    store = MemoryStore(make_policy("plas"), program_idle_s=600.0, session_ttl_s=30.0)
    app = create_app(settings, *engines, store=store)
    try:
        async with listening(app) as url, aiohttp.ClientSession() as client:
            yield PoolRig(url, client, engines, app)

            async def is_settled() -> bool:
                return (await store.counts()).active_calls == 0

            await until(is_settled)
            await until(lambda: all(not member.open_calls for member in app.state.gateway.pool))
    finally:
        for fake in engines:
            await fake.stop()
