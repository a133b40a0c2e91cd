"""Ten faults at three in the morning: log, health and alerts name engine and cause, as the guide says."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import redis
import yaml
from fastapi import FastAPI
from tests.fakes.engine import FakeBehaviour, FakeEngine, Fault
from tests.gateway.conftest import CHAT, HELLO
from tests.redis_server import RedisServer
from tests.serving import listening
from tests.waiting import until

from autellix_backend.assembly import create_app
from autellix_backend.cli.announcements import note_change
from autellix_backend.engines import supervisor
from autellix_backend.engines.base import EngineKind
from autellix_backend.engines.remote import RemoteEngine
from autellix_backend.gateway.engines import handle
from autellix_backend.gateway.tenancy.file import load_tenants
from autellix_backend.gateway.tenancy.tenants import key_line
from autellix_backend.settings import (
    EngineSettings,
    GatewaySettings,
    ObserveSettings,
    Settings,
    StoreSettings,
)

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guides" / "failures.md"
ALERTS = ROOT / "deploy" / "grafana" / "alerts.yaml"
FULL_DISK = Path("/dev/full")


@dataclass(slots=True)
class Night:
    """A gateway, its engines, and what an operator can see of them."""

    url: str
    client: aiohttp.ClientSession
    app: FastAPI
    engines: Sequence[FakeEngine]
    caplog: pytest.LogCaptureFixture
    redis_server: RedisServer | None
    calls: list[asyncio.Task[int]] = field(default_factory=list)

    async def call(self, program: str = "p") -> int:
        """Make a call; return its status."""
        headers = {"X-Autellix-Program-ID": program, "X-API-Key": "key"}
        async with self.client.post(self.url + CHAT, json=HELLO, headers=headers) as response:
            await response.read()
            return response.status

    def begin(self, count: int) -> None:
        """Begin calls of as many programs, which stay open."""
        self.calls += [asyncio.create_task(self.call(f"open-{number}")) for number in range(count)]

    def break_engine(self, **behaviour: Any) -> None:
        """Give the first engine another behaviour."""
        self.engines[0].behaviour = replace(self.engines[0].behaviour, **behaviour)

    async def sight(self) -> str:
        """Return what log, health, the list of engines and the page of metrics say."""
        pages = []
        for path in ("/readyz", "/autellix/v1/engines", "/metrics"):
            async with self.client.get(self.url + path, headers={"X-API-Key": "admin"}) as response:
                pages.append(await response.text())
        return "\n".join([*(record.getMessage() for record in self.caplog.records), *pages])

    async def sees(self, *patterns: str) -> None:
        """Wait until each pattern is in sight; make a call for each look, as clients go on."""
        missing = list(patterns)

        async def are_seen() -> bool:
            if not self.calls:
                await self.call()
            seen = await self.sight()
            missing[:] = [pattern for pattern in patterns if not re.search(pattern, seen)]
            return not missing

        try:
            await until(are_seen, 0.05)
        except AssertionError:
            pytest.fail(f"not in sight: {missing}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A fault, and how an operator finds it."""

    begin: Callable[[Night], Awaitable[None]]
    alert: str
    """The alert that fires."""
    series: str
    """The series that lets it fire."""
    words: tuple[str, ...]
    """What log and pages say of engine and cause."""
    settings: Settings = field(default_factory=Settings)
    needs_redis: bool = False
    has_tenants: bool = False


async def refuse(night: Night) -> None:
    night.break_engine(fault=Fault.ERROR, error_status=503, error_message="no free worker")


async def rotate_key(night: Night) -> None:
    night.break_engine(fault=Fault.ERROR, error_status=401, error_message="invalid key")


async def fall_silent(night: Night) -> None:
    night.break_engine(fault=Fault.HANG, health_status=None)


async def die(night: Night) -> None:
    await night.engines[0].stop()


async def stop_redis(night: Night) -> None:
    assert night.redis_server is not None
    await night.call()
    night.redis_server.stop()


async def fill_redis(night: Night) -> None:
    assert night.redis_server is not None
    await night.call()
    with redis.Redis.from_url(night.redis_server.url) as admin:
        admin.config_set("maxmemory-policy", "noeviction")
        admin.config_set("maxmemory", 1)


async def go_on(night: Night) -> None:
    """The settings are the fault."""


async def starve(night: Night) -> None:
    for engine in night.engines:
        engine.behaviour = replace(engine.behaviour, gate=asyncio.Event())
    night.begin(6)


PLAIN = Settings(engine=EngineSettings(max_in_flight=1, kind="openai"))
CASES = {
    "an engine refuses": Case(
        begin=refuse,
        alert="AutellixEngineRefuses",
        series=r'autellix_engine_refusing\{engine="remote-0"\} 1',
        words=(r"remote-0: refusing since \S+Z: 503 no free worker",),
    ),
    "an engine is silent": Case(
        begin=fall_silent,
        alert="AutellixEngineDown",
        series=r'autellix_engine_up\{engine="remote-0"\} 0',
        words=("remote-0 does not answer /health in time",),
    ),
    "an engine is dead": Case(
        begin=die,
        alert="AutellixEngineDown",
        series=r'autellix_engine_up\{engine="remote-0"\} 0',
        words=(r"remote-0 does not answer \(Connection refused\)",),
    ),
    "an engine's key is rotated": Case(
        begin=rotate_key,
        alert="AutellixEngineRefuses",
        series=r'autellix_engine_refusing\{engine="remote-0"\} 1',
        words=(r"remote-0: refusing since \S+Z: 401 invalid key",),
        settings=Settings(engine=EngineSettings(api_key="old")),
    ),
    "Redis is gone": Case(
        begin=stop_redis,
        alert="AutellixProcessTableUnreachable",
        series=r"autellix_store_up 0",
        words=(r"the shared process table cannot be used \(.+\): this gateway works alone",),
        needs_redis=True,
    ),
    "Redis is full": Case(
        begin=fill_redis,
        alert="AutellixProcessTableUnreachable",
        series=r"autellix_store_up 0",
        words=(r"the shared process table cannot be used \(.*maxmemory.*\): this gateway works alone",),
        needs_redis=True,
    ),
    "the disk is full": Case(
        begin=go_on,
        alert="AutellixCallLogFails",
        series=r'autellix_call_log_lines_total\{result="failed"\} [1-9]',
        words=(r"observe\.call_log: cannot write \(No space left on device\)",),
        settings=Settings(observe=ObserveSettings(call_log=FULL_DISK)),
    ),
    "a tenant is over its budget": Case(
        begin=go_on,
        alert="AutellixBudgetUsedUp",
        series=r'autellix_refusals_total\{reason="tenant_budget_exceeded",tenant="red"\} [1-9]',
        words=(),
        has_tenants=True,
    ),
    "calls wait for slots": Case(
        begin=starve,
        alert="AutellixCallsWaitForSlots",
        series=r'autellix_engine_saturation\{engine="remote-\d",model="[^"]*"\} [3-9]',
        words=(),
        settings=PLAIN,
    ),
    "the gateway is overloaded": Case(
        begin=starve,
        alert="AutellixGatewayFull",
        series=r'autellix_refusals_total\{reason="queue_calls",tenant=""\} [1-9]',
        words=(r'autellix_unanswered_calls\{engine="remote-0"\} 2',),
        settings=PLAIN,
    ),
}


@asynccontextmanager
async def night_of(
    case: Case, caplog: pytest.LogCaptureFixture, server: RedisServer | None
) -> AsyncIterator[Night]:
    """Serve two engines through a gateway with the case's settings."""
    kind = EngineKind.OPENAI if case.settings is PLAIN else EngineKind.VLLM
    engines = [
        FakeEngine(FakeBehaviour(), name=f"fake-{number}", is_owned=False, kind=kind) for number in (0, 1)
    ]
    for engine in engines:
        await engine.start()
    remotes = [
        RemoteEngine(each.base_url, name=each.name.replace("fake", "remote"), kind=kind) for each in engines
    ]
    for remote in remotes:
        await remote.start()
    app = create_app(case.settings, *remotes, tenants=load_tenants(case.settings))
    app.state.gateway.pool.subscribe(note_change)
    try:
        async with listening(app) as url, aiohttp.ClientSession() as client:
            night = Night(url, client, app, engines, caplog, server)
            yield night
            for engine in engines:
                if engine.behaviour.gate is not None:
                    engine.behaviour.gate.set()
            await asyncio.gather(*night.calls)
    finally:
        for engine in engines:
            await engine.stop()


@pytest.fixture
def own_server(redis_program: str, tmp_path: Path) -> Any:
    """Yield a Redis that a case may break."""
    server = RedisServer(redis_program, tmp_path)
    server.start()
    yield server
    server.stop()


def tenants(path: Path) -> Path:
    """Write a tenant with a budget that its first call uses up, and an admin."""
    path.write_text(
        f'[[tenant]]\nname = "red"\nkeys = ["{key_line("key")}"]\nlimits.day_tokens = 1\n'
        f'[[tenant]]\nname = "ops"\nadmin = true\nkeys = ["{key_line("admin")}"]\n'
    )
    return path


@pytest.mark.skipif(not FULL_DISK.exists(), reason="needs Linux's /dev/full")
@pytest.mark.parametrize("name", CASES)
async def test_the_operator_finds_engine_and_cause(
    name: str,
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    case, server = CASES[name], None
    monkeypatch.setattr(supervisor, "PROBE_PERIOD_S", 0.05)
    monkeypatch.setattr(supervisor, "PROBE_TIMEOUT_S", 0.2)
    if case.needs_redis:
        server = request.getfixturevalue("own_server")
        case = replace(case, settings=Settings(store=StoreSettings(url=server.url)))
    if case.has_tenants:
        file = tenants(tmp_path / "tenants.toml")
        case = replace(case, settings=Settings(gateway=GatewaySettings(tenants_file=file)))
    if name == "the gateway is overloaded":
        monkeypatch.setattr(handle, "MAX_WAITING_CALLS", 2)
    with caplog.at_level(logging.INFO):
        async with night_of(case, caplog, server) as night:
            await case.begin(night)
            await night.sees(case.series, *case.words)


def rule(alert: str) -> str:
    """Return the expression of an alert."""
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    [found] = [each["expr"] for group in groups for each in group["rules"] if each.get("alert") == alert]
    return str(found)


@pytest.mark.parametrize("name", CASES)
def test_the_guide_leads_from_the_alert_to_the_cause(name: str) -> None:
    case = CASES[name]
    metric = re.match(r"autellix_\w+", case.series)
    assert metric is not None
    assert metric.group() in rule(case.alert)
    night = GUIDE.read_text(encoding="utf-8").split("## Alerts, and where to look")[1].split("\n## ")[0]
    [row] = [line for line in night.splitlines() if line.startswith(f"| {name} |")]
    assert f"`{case.alert}`" in row
