"""A gateway in this process, and what a test of its engines asks of it."""

from __future__ import annotations

from typing import Any

import aiohttp


class GatewayRig:
    """A gateway with one engine."""

    def __init__(self, app: Any, url: str, client: aiohttp.ClientSession) -> None:
        self.app = app
        self.url = url
        self.client = client

    @property
    def handle(self) -> Any:
        [handle] = self.app.state.gateway.pool
        return handle

    async def get(self, path: str) -> Any:
        async with self.client.get(self.url + path) as response:
            return await response.json()

    async def engine(self) -> dict[str, Any]:
        [row] = (await self.get("/autellix/v1/engines"))["engines"]
        found: dict[str, Any] = row
        return found
