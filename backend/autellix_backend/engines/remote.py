"""An engine that runs elsewhere: any OpenAI-compatible server, known by its address."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import aiohttp

from autellix_backend.engines.base import EngineUnreachableError

PROBE_PATHS = ("/health", "/v1/models")
PROBE_PERIOD_S = 0.5
PROBE_TIMEOUT_S = 3.0
DEFAULT_PATIENCE_S = 10.0


class RemoteEngine:
    """A server that we neither start nor stop; it sends no accounts."""

    def __init__(self, url: str, *, name: str = "remote-0", patience_s: float | None = None) -> None:
        self._base_url = url.rstrip("/").removesuffix("/v1")
        self._name = name
        self._patience_s = DEFAULT_PATIENCE_S if patience_s is None else patience_s
        self._is_started = False

    @property
    def name(self) -> str:
        """The name that receipts and logs show."""
        return self._name

    @property
    def base_url(self) -> str:
        """Root of the server, without the `/v1` that OpenAI clients need."""
        return self._base_url

    @property
    def accounting_socket(self) -> Path | None:
        """None: accounts travel only within one machine."""
        return None

    async def start(self) -> None:
        """Return once the server answers its health or models path.

        Raises:
            EngineUnreachableError: if it does not within the patience.
        """
        deadline = time.monotonic() + self._patience_s
        timeout = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as client:
            while (problem := await self._probe(client)) is not None:
                if time.monotonic() > deadline:
                    raise EngineUnreachableError(self._base_url, problem)
                await asyncio.sleep(PROBE_PERIOD_S)
        self._is_started = True

    async def stop(self) -> None:
        """Forget the server; it goes on without us."""
        self._is_started = False

    def is_alive(self) -> bool:
        """Say whether start() found it; a later death shows in the calls themselves."""
        return self._is_started

    def failure(self) -> str | None:
        """Return None: we do not watch the process of a remote engine."""
        return None

    async def _probe(self, client: aiohttp.ClientSession) -> str | None:
        """Return what is wrong, None when the server answers; a locked door (401) is an answer too."""
        problem = "does not answer"
        for path in PROBE_PATHS:
            try:
                async with client.get(self._base_url + path) as response:
                    if response.status in (200, 401, 403):
                        return None
                    problem = f"answers {path} with status {response.status}"
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                problem = f"does not answer ({type(error).__name__})"
        return problem
