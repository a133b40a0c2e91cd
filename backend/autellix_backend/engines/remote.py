"""An engine that runs elsewhere: any OpenAI-compatible server, known by its address."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from urllib.parse import urlsplit

from autellix_backend.engines.base import EngineUnreachableError
from autellix_backend.engines.kind import EngineKind, detect_kind
from autellix_backend.engines.probe import HEALTH_PATH, Health, probe

PROBE_PATHS = (HEALTH_PATH, "/v1/models")
PROBE_PERIOD_S = 0.5
PROBE_TIMEOUT_S = 3.0
DEFAULT_PATIENCE_S = 10.0

logger = logging.getLogger(__name__)


class RemoteEngine:
    """A server that we neither start nor stop; it sends no accounts."""

    def __init__(
        self,
        url: str,
        *,
        name: str = "remote-0",
        patience_s: float | None = None,
        kind: EngineKind | None = None,
        kv_events_port: int | None = None,
    ) -> None:
        """Take the address; a `kind` that is None is found out when the server first answers."""
        self._kv_events_port = kv_events_port
        self._base_url = url.rstrip("/").removesuffix("/v1")
        self._name = name
        self._patience_s = DEFAULT_PATIENCE_S if patience_s is None else patience_s
        self._given_kind = kind
        # Until a server says what it is, it gets what every server takes.
        self._kind = kind or EngineKind.OPENAI
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
    def kind(self) -> EngineKind:
        """Whose fields its calls may have, as given or as start() found."""
        return self._kind

    @property
    def report_socket(self) -> Path | None:
        """None: accounts travel only within one machine."""
        return None

    @property
    def kv_events_endpoint(self) -> str | None:
        """The server's host at the port that was given."""
        if self._kv_events_port is None:
            return None
        host = urlsplit(self._base_url).hostname or ""
        return (
            f"tcp://[{host}]:{self._kv_events_port}"
            if ":" in host
            else f"tcp://{host}:{self._kv_events_port}"
        )

    @property
    def is_owned(self) -> bool:
        """False: somebody else runs it."""
        return False

    async def start(self) -> None:
        """Return once the server answers its health or models path, and it is known what sort it is.

        Raises:
            EngineUnreachableError: if it does not within the patience.
        """
        deadline = time.monotonic() + self._patience_s
        while (problem := (await self.probe(PROBE_TIMEOUT_S)).problem) is not None:
            if time.monotonic() > deadline:
                raise EngineUnreachableError(self._base_url, problem)
            await asyncio.sleep(PROBE_PERIOD_S)
        if self._given_kind is None:
            self._kind = await detect_kind(self._base_url, PROBE_TIMEOUT_S)
            logger.info("%s takes the fields of %s", self._name, self._kind)
        self._is_started = True

    async def stop(self) -> None:
        """Forget the server; it goes on without us."""
        self._is_started = False

    async def kill(self, reason: str) -> None:
        """Do nothing: it is not ours."""

    async def probe(self, timeout_s: float) -> Health:
        """Ask its health path, and if it has none, its models."""
        return await probe(self._base_url, timeout_s, PROBE_PATHS)

    def is_alive(self) -> bool:
        """Say whether start() found it; a later death shows in probes and in the calls themselves."""
        return self._is_started

    def failure(self) -> str | None:
        """Return None: we do not watch the process of a remote engine."""
        return None
