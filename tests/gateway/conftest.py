"""A gateway in front of a fake engine, both on real sockets."""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fastapi import FastAPI
from tests.fakes.engine import FakeBehaviour, FakeEngine
from tests.gateway.usage import check_usage, reserved_calls
from tests.serving import listening
from tests.waiting import until

from autellix_backend.assembly import create_app
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.policies import make_policy
from autellix_backend.gateway.sessions.running_sessions import SESSION_TTL_S
from autellix_backend.gateway.tenancy.limiter import Limiter
from autellix_backend.gateway.tenancy.tenants import key_line
from autellix_backend.reports.snapshot import EngineSnapshot
from autellix_backend.settings import (
    EngineSettings,
    GatewaySettings,
    ObserveSettings,
    Settings,
    TenantLimits,
)
from autellix_backend.stores.memory import MemoryStore

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"model": "autellix.fake-model", "messages": [{"role": "user", "content": "hello"}]}


@dataclass(slots=True)
class Rig:
    """What a test gets: the gateway's address, a raw client, and the parts behind it."""

    url: str
    client: aiohttp.ClientSession
    engine: FakeEngine
    store: MemoryStore
    limiter: Limiter | None
    app: FastAPI

    async def chat(self, headers: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
        """Make one chat call and return its answer."""
        async with self.client.post(self.url + CHAT, json={**HELLO, **fields}, headers=headers) as response:
            answer: dict[str, Any] = await response.json()
            return answer

    async def get(self, path: str) -> tuple[int, dict[str, Any]]:
        """Read one JSON endpoint."""
        async with self.client.get(self.url + path) as response:
            return response.status, await response.json()

    async def settled(self) -> None:
        """Wait until no call is open."""
        await until(self._is_settled)

    async def _is_settled(self) -> bool:
        return (await self.store.counts()).active_calls == 0


async def tell_snapshot(rig: Rig, told: EngineSnapshot) -> None:
    """Send a snapshot as the engine does, and wait until the gateway has it."""
    assert rig.engine.report_server is not None
    rig.engine.report_server.broadcast(told)

    async def has_come() -> bool:
        (engine,) = (await rig.get("/autellix/v1/engines"))[1]["engines"]
        return bool(engine["running"] is not None)

    await until(has_come)


Serve = Callable[..., AbstractAsyncContextManager[Rig]]


@pytest.fixture
def wait_until() -> Callable[[Callable[[], bool]], Any]:
    return until


@pytest.fixture
def tell() -> Callable[[Rig, EngineSnapshot], Any]:
    return tell_snapshot


@pytest.fixture
def tenants_file(tmp_path: Path) -> Path:
    """Write a hostile tenant with the key `bad`, and a quiet one with the key `good`."""
    path = tmp_path / "tenants.toml"
    path.write_text(
        f'[[tenant]]\nname = "hostile"\nkeys = ["{key_line("bad")}"]\n'
        "[tenant.limits]\nmax_call_bytes = 100000\n"
        f'[[tenant]]\nname = "quiet"\nkeys = ["{key_line("good")}"]\n'
    )
    return path


@pytest.fixture
def listen() -> Callable[[Any], AbstractAsyncContextManager[str]]:
    """Serve an app on a free port."""
    return listening


@pytest.fixture
def serve() -> Serve:
    @asynccontextmanager
    async def run(
        behaviour: FakeBehaviour | None = None,
        *,
        policy: str = "plas",
        service: str = "measured",
        admission: str = "none",
        reports: bool = True,
        engine: FakeEngine | None = None,
        observe: ObserveSettings | None = None,
        engine_settings: Mapping[str, Any] | None = None,
        limits: TenantLimits | None = None,
        session_ttl_s: float = SESSION_TTL_S,
        clock: Callable[[], float] = time.monotonic,
        **gateway: Any,
    ) -> AsyncIterator[Rig]:
        # Paths of unix sockets are short, pytest's folders are not.
        with tempfile.TemporaryDirectory() as folder:
            address = f"ipc://{folder}/reports" if reports else None
            engine = engine or FakeEngine(behaviour, report_address=address)
            await engine.start()
            try:
                settings = Settings(
                    gateway=GatewaySettings(**gateway),
                    engine=EngineSettings(**(engine_settings or {})),
                    scheduler=SchedulerConfig(
                        policy=policy,
                        bounds=(0.1, 1.0),
                        service=service,
                        admission=admission,
                    ),
                    limits=limits or TenantLimits(),
                    observe=observe or ObserveSettings(),
                )
                store = MemoryStore(
                    make_policy(policy),
                    program_idle_s=settings.gateway.program_idle_s,
                    session_ttl_s=session_ttl_s,
                )
                app = create_app(settings, engine, store=store, clock=clock)
                async with listening(app) as url:
                    async with aiohttp.ClientSession() as client:
                        rig = Rig(url, client, engine, store, app.state.gateway.limiter, app)
                        yield rig
                    await rig.settled()
                    store.check()
                    assert len(app.state.gateway.classes) == (await store.counts()).programs
                    if rig.limiter is not None:
                        check_usage(rig.limiter)
                        assert reserved_calls(rig.limiter) == 0
            finally:
                await engine.stop()

    return run
