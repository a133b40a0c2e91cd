"""What programs and operators ask of gateways."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp

from autellix_lab.demo.model import DEMO_MODEL_NAME
from autellix_wire.headers import FINAL, PROGRAM_ID
from autellix_wire.paths import API_PREFIX

ENGINES_PATH = f"{API_PREFIX}/engines"
PATIENCE_S = 600.0
LOOK_PERIOD_S = 0.05


class Address(Protocol):
    """A gateway."""

    @property
    def name(self) -> str:
        """Its name in messages."""

    @property
    def url(self) -> str:
        """Its address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """Gateways and how many engines they share."""

    gateways: Sequence[Address]
    engines: int


@asynccontextmanager
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    """Yield a client that keeps no connections: gateways come and go."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        yield session


async def get(session: aiohttp.ClientSession, gateway: Address, path: str) -> Any:
    """Return what a gateway answers, whatever its status."""
    async with session.get(gateway.url + path) as response:
        return await response.json()


async def chat(session: aiohttp.ClientSession, gateway: Address, program: str, tokens: int) -> dict[str, Any]:
    """Make a program's only call; return the answer with its receipt."""
    body = {
        "model": DEMO_MODEL_NAME,
        "messages": [{"role": "user", "content": "Good day."}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
    }
    headers = {PROGRAM_ID: program, FINAL: "true"}
    async with session.post(gateway.url + "/v1/chat/completions", json=body, headers=headers) as response:
        answer: dict[str, Any] = await response.json()
        assert response.status == 200, answer
        return answer


async def until(what: str, condition: Callable[[], Awaitable[bool]], patience_s: float = PATIENCE_S) -> None:
    """Wait for what a gateway says."""
    assert await comes_true(condition, patience_s), f"{what}: not within {patience_s:g} s"


async def comes_true(condition: Callable[[], Awaitable[bool]], patience_s: float = PATIENCE_S) -> bool:
    """Return whether a condition comes to hold."""
    deadline = time.monotonic() + patience_s
    while not await _holds(condition):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(LOOK_PERIOD_S)
    return True


async def _holds(condition: Callable[[], Awaitable[bool]]) -> bool:
    try:
        return await condition()
    except (aiohttp.ClientError, TimeoutError):
        # The gateway is being started again.
        return False


async def reporting(session: aiohttp.ClientSession, gateway: Address) -> dict[str, str]:
    """Return the state of each engine's reports as a gateway sees it."""
    rows = (await get(session, gateway, ENGINES_PATH))["engines"]
    return {row["name"]: row["reporting"] for row in rows}


async def are_all_well(session: aiohttp.ClientSession, backend: Backend) -> bool:
    """Return whether all engines are up at all gateways, and report."""
    for gateway in backend.gateways:
        rows = (await get(session, gateway, ENGINES_PATH))["engines"]
        if [(row["state"], row["reporting"]) for row in rows] != [("up", "up")] * backend.engines:
            return False
        if (await get(session, gateway, "/readyz")).get("status") != "ready":
            return False
    return True
