"""A fake engine for tests: an OpenAI-compatible server in this process, with faults on demand.

It answers calls in vLLM's dialects, streaming or not, records what it receives, notices aborted calls, and
can send the engine reports that the vLLM plugin sends. It echoes all other requests.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Any

from aiohttp import web
from msgspec.structs import replace
from tests.fakes.answers import (
    CHAT_PATH,
    COMPLETIONS_PATH,
    EMBEDDINGS_PATH,
    MESSAGES_PATH,
    RESPONSES_PATH,
)
from tests.fakes.api import FakeApi
from tests.fakes.call import MODEL_NAME, FakeBehaviour, FakeCall, Fault, ReceivedRequest

from autellix_backend.engines.base import EngineKind, Health
from autellix_backend.engines.probe import probe
from autellix_backend.reports.link import EngineFacts
from autellix_backend.reports.report import EngineReport
from autellix_backend.vllm_plugin.report_server import ReportServer

__all__ = [
    "CHAT_PATH",
    "COMPLETIONS_PATH",
    "EMBEDDINGS_PATH",
    "MESSAGES_PATH",
    "MODEL_NAME",
    "RESPONSES_PATH",
    "FakeBehaviour",
    "FakeCall",
    "FakeEngine",
    "Fault",
    "ReceivedRequest",
]

BACKLOG = 2048
"""Connections that wait to be accepted, as before vLLM's server: of aiohttp's 128 a crowd tries again."""
_FACTS = EngineFacts(
    engine="", version="0", vllm="fake", policy="plas", has_admission=False, slots=256, kv_tokens=None
)


class FakeEngine(FakeApi):
    """An engine with the answers and faults of its behaviour; replace `behaviour` at any time."""

    def __init__(
        self,
        behaviour: FakeBehaviour | None = None,
        *,
        name: str = "fake-0",
        keep_alive_s: float = 75.0,
        keeps_requests: bool = True,
        is_owned: bool = True,
        kind: EngineKind = EngineKind.VLLM,
        port: int = 0,
        on_report: Callable[[EngineReport], None] | None = None,
        report_address: str | None = None,
        report_secret: str | None = None,
        policy: str = "plas",
    ) -> None:
        """Prepare a server; start() makes it listen.

        Args:
            behaviour: How it answers.
            name: The name in receipts.
            keep_alive_s: How long it keeps an idle connection.
            keeps_requests: Whether it records what it receives.
            is_owned: Whether a supervisor may kill and restart it.
            kind: The engine kind, which decides the fields of its calls.
            port: Where it listens; 0 takes a free port at each start.
            on_report: Receives every engine report, sent or not.
            report_address: Where gateways connect for engine reports; None for none.
            report_secret: What they have to know.
            policy: The policy that it reports.
        """
        super().__init__(
            behaviour or FakeBehaviour(),
            keeps_requests=keeps_requests,
            on_report=on_report,
        )
        self.name = name
        self.is_owned = is_owned
        self.kind = kind
        self.base_url = ""
        """Root of the server; valid after start()."""
        self.kv_tokens: int | None = None
        self.report_endpoints = () if report_address is None else (report_address,)
        self._report_secret = report_secret
        self._policy = policy
        self._keep_alive_s = keep_alive_s
        self._port = port
        self._runner: web.AppRunner | None = None
        self._failure: str | None = None

    async def start(self) -> None:
        """Listen on the loopback address."""
        if self._runner is not None:
            return
        self._runner = web.AppRunner(
            self.app(),
            access_log=None,
            handler_cancellation=True,
            keepalive_timeout=self._keep_alive_s,
            shutdown_timeout=0.1,
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, backlog=BACKLOG).start()
        self.base_url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        self._failure = None
        self.listen()

    def listen(self, **changes: Any) -> None:
        """Open the report address, as a process that is new, with these changes of its facts."""
        if self.report_endpoints:
            facts = replace(_FACTS, engine=secrets.token_hex(8), policy=self._policy, **changes)
            [address] = self.report_endpoints
            self.report_server = ReportServer(address, self._report_secret, lambda: facts)

    async def stop(self) -> None:
        """Close the server and its connections."""
        server, self.report_server = self.report_server, None
        if server is not None:
            await asyncio.to_thread(server.close)
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def kill(self, reason: str = "the fake engine was killed") -> None:
        """Crash: cut running calls off and make failure() return the reason."""
        await self.stop()
        self._failure = reason

    async def probe(self, timeout_s: float) -> Health:
        """Probe the health path; the behaviour sets its answer."""
        return await probe(self.base_url, timeout_s)

    def is_alive(self) -> bool:
        """Return whether the server listens."""
        return self._runner is not None

    def failure(self) -> str | None:
        """Return the reason given to kill(), if any."""
        return self._failure
