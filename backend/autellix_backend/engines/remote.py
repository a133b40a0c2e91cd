"""An engine that we do not run: any OpenAI-compatible server, by its address."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

from autellix_backend.engines.base import EngineKind, EngineUnreachableError, Health
from autellix_backend.engines.probe import (
    HEALTH_PATH,
    QueueLengths,
    detect_kind,
    probe,
    read_cache,
    read_queue,
)
from autellix_backend.reports.link import address_of_rank
from autellix_backend.settings import without_credentials

PROBE_PATHS = (HEALTH_PATH, "/v1/models")
PROBE_PERIOD_S = 0.5
PROBE_TIMEOUT_S = 3.0
START_PATIENCE_S = 10.0

logger = logging.getLogger(__name__)


class RemoteEngine:
    """A server that we neither start nor stop."""

    is_owned = False

    def __init__(
        self,
        url: str,
        *,
        name: str = "remote-0",
        kind: EngineKind | None = None,
        report_port: int | None = None,
    ) -> None:
        """Note the address; a `kind` that is None is detected when the server first answers."""
        self._report_port = report_port
        plain, self.authorization = without_credentials(url)
        self.base_url = plain.rstrip("/").removesuffix("/v1")
        """Without the password that the address may have, so that it can be shown."""
        self.name = name
        self._given_kind = kind
        # Until it is detected, only the fields that every server accepts.
        self.kind = kind or EngineKind.OPENAI
        self.kv_tokens: int | None = None
        self.states_queue = False
        """Whether queue_lengths() can be read; known after start()."""
        self._ranks = 1
        self._is_started = False

    @property
    def report_endpoints(self) -> Sequence[str]:
        """Return the server's host with the given port, and those above it for further ranks."""
        if self._report_port is None or self.kind is not EngineKind.VLLM:
            return ()
        address = self._endpoint(self._report_port)
        return [address_of_rank(address, rank) for rank in range(self._ranks)]

    def _endpoint(self, port: int) -> str:
        host = urlsplit(self.base_url).hostname or ""
        return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"

    async def start(self) -> None:
        """Return once the server answers its health or models path and its kind is known."""
        deadline = time.monotonic() + START_PATIENCE_S
        while (problem := (await self.probe(PROBE_TIMEOUT_S)).problem) is not None:
            if time.monotonic() > deadline:
                raise EngineUnreachableError(self.base_url, problem)
            await asyncio.sleep(PROBE_PERIOD_S)
        if self._given_kind is None:
            self.kind = await detect_kind(self.base_url, PROBE_TIMEOUT_S, self.authorization)
            logger.info("%s accepts the fields of %s", self.name, self.kind)
        if self.kind is EngineKind.VLLM:
            cache = await read_cache(self.base_url, PROBE_TIMEOUT_S, self.authorization)
            self.kv_tokens, self._ranks, self.states_queue = cache.tokens, cache.ranks, cache.states_queue
        self._is_started = True

    async def stop(self) -> None:
        """Drop the connection; the server keeps running."""
        self._is_started = False

    async def kill(self, reason: str) -> None:
        """Do nothing: it is not ours."""

    async def probe(self, timeout_s: float) -> Health:
        """Probe its health path, and if it has none, its models path."""
        return await probe(self.base_url, timeout_s, PROBE_PATHS, authorization=self.authorization)

    async def queue_lengths(self) -> QueueLengths | None:
        """Return the numbers of calls there, of all clients; None if it does not answer. Never raises."""
        return await read_queue(self.base_url, PROBE_TIMEOUT_S, self.authorization)

    def is_alive(self) -> bool:
        """Return whether start() reached it; a later failure shows in probes and calls."""
        return self._is_started

    def failure(self) -> str | None:
        """Return None: a remote engine's process is not watched."""
        return None
