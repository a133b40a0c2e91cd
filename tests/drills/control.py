"""An operator's view of the gateways, and the commands to them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from tests.drills.processes import Server
from tests.waiting import PATIENCE_S

LOOK_PERIOD_S = 0.05
ENGINES = "/autellix/v1/engines"


async def until(
    what: str,
    condition: Callable[..., Awaitable[bool]],
    *arguments: object,
    told: Callable[[], object] = str,
) -> None:
    """Wait for a condition; on a timeout, fail with its description and the actual state."""
    deadline = time.monotonic() + PATIENCE_S
    while not await condition(*arguments):
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE_S:g} s; {told()}"
        await asyncio.sleep(LOOK_PERIOD_S)


@dataclass(frozen=True, slots=True)
class Operator:
    """Asks gateways over connections that are not kept."""

    client: aiohttp.ClientSession

    async def readiness(self, gateway: Server) -> dict[str, Any]:
        """Return the gateway's answer to /readyz."""
        async with self.client.get(gateway.url + "/readyz") as response:
            told: dict[str, Any] = await response.json()
            return told

    async def metrics(self, gateway: Server) -> dict[str, float]:
        """Return the gateway's metrics, by name and the values of the labels."""
        async with self.client.get(gateway.url + "/metrics") as response:
            families = text_string_to_metric_families(await response.text())
            return {
                " ".join((sample.name, *sample.labels.values())): sample.value
                for family in families
                for sample in family.samples
            }

    async def engines(self, gateway: Server) -> list[dict[str, Any]]:
        """Return the engines as the gateway sees them."""
        async with self.client.get(gateway.url + ENGINES) as response:
            engines: list[dict[str, Any]] = (await response.json())["engines"]
            return engines

    async def tell(self, gateway: Server, engine: str, action: str) -> None:
        """Have a gateway drain or undrain an engine."""
        async with self.client.post(f"{gateway.url}{ENGINES}/{engine}/{action}") as response:
            assert response.status == 200, await response.text()

    async def has_store(self, gateway: Server) -> bool:
        """Return whether a gateway uses the shared table, by its metrics and its readiness."""
        is_up = (await self.metrics(gateway))["autellix_store_up"] == 1.0
        return is_up and (await self.readiness(gateway))["status"] == "ready"

    async def lacks_store(self, gateway: Server) -> bool:
        """Return whether a gateway runs without the shared table and reports so."""
        is_down = (await self.metrics(gateway))["autellix_store_up"] == 0.0
        return is_down and (await self.readiness(gateway))["status"] == "degraded"

    async def sees(self, gateway: Server, engine: str, state: str) -> bool:
        """Return whether an engine is in a state, as a gateway sees it."""
        states = {one["name"]: one["state"] for one in await self.engines(gateway)}
        return bool(states[engine] == state)


@asynccontextmanager
async def operating() -> AsyncIterator[Operator]:
    """Yield an operator."""
    connector = aiohttp.TCPConnector(force_close=True)
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as client:
        yield Operator(client)
