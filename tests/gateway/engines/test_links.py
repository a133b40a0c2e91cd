"""A gateway before an engine of others that reports over the network: the same as before its own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from tests.fakes.engine import FakeBehaviour, FakeEngine
from tests.gateway.engines.rig import GatewayRig
from tests.gateway.snapshots import snapshot, standing
from tests.report_links import SECRET, free_address
from tests.serving import listening
from tests.waiting import until

from autellix_backend.assembly import create_app
from autellix_backend.cli.announcements import ready_line
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.engines import supervisor
from autellix_backend.settings import EngineSettings, GatewaySettings, Settings

CHAT = "/v1/chat/completions"
SLOW = FakeBehaviour(token_delay_s=0.05, output_tokens=1000)
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello there"}]}


@pytest.fixture(autouse=True)
def quick_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "PROBE_PERIOD_S", 0.1)


class LinkRig(GatewayRig):
    """A gateway, and what a test asks of it."""

    async def chat(self, program: str = "p", **fields: Any) -> dict[str, Any]:
        headers = {"X-Autellix-Program-ID": program}
        async with self.client.post(self.url + CHAT, json={**BODY, **fields}, headers=headers) as response:
            assert response.status == 200
            answer: dict[str, Any] = await response.json()
            return answer

    async def reports(self, state: str) -> None:
        await until(lambda: self.handle.reporting.state == state)


@asynccontextmanager
async def gateway(
    engine: FakeEngine, *, secret: str | None = SECRET, policy: str = "plas", **settings: Any
) -> AsyncIterator[LinkRig]:
    app = create_app(
        Settings(
            gateway=GatewaySettings(report_wait_s=30.0),
            engine=EngineSettings(report_secret=secret, **settings),
            scheduler=SchedulerConfig(policy=policy),
        ),
        engine,
    )
    async with listening(app) as url, aiohttp.ClientSession() as client:
        yield LinkRig(app, url, client)


@asynccontextmanager
async def engine_of_others(address: str | None = None, **options: Any) -> AsyncIterator[FakeEngine]:
    options = {"report_secret": SECRET, **options}
    engine = FakeEngine(is_owned=False, report_address=address or free_address(), **options)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def test_two_gateways_get_the_reports_of_their_own_calls() -> None:
    async with engine_of_others() as engine, gateway(engine) as one, gateway(engine) as other:
        await one.reports("up")
        await other.reports("up")
        answers = await asyncio.gather(*(rig.chat() for rig in (one, other) for _ in range(5)))
        assert [answer["autellix"]["estimated"] for answer in answers] == [False] * 10
        for rig in (one, other):
            async with rig.client.get(rig.url + "/metrics") as response:
                page = await response.text()
            assert 'autellix_reports_total{result="matched"} 5.0' in page
            assert 'result="late"' not in page
            assert 'autellix_engine_reports{engine="fake-0"} 1.0' in page


async def test_snapshots_show_where_calls_are() -> None:
    async with engine_of_others(behaviour=SLOW) as engine, gateway(engine) as rig:
        await rig.reports("up")
        task = asyncio.create_task(rig.chat())
        await engine.wait_until(lambda: bool(engine.calls))
        key = engine.calls[0].xargs["autellix_call"]
        waiting = standing("p", place=1, level=1, call_id=key)
        assert engine.report_server is not None
        engine.report_server.broadcast(snapshot(waiting, slots=7))
        await until(lambda: rig.handle.snapshots.merged is not None)
        row = await rig.engine()
        assert (row["slots"], row["reporting"]) == (7, "up")
        [program] = (await rig.get("/autellix/v1/programs"))["programs"]
        assert program["state"] == "waiting_for_slot"
        why = await rig.get("/autellix/v1/programs/p/why")
        assert (why["calls"][0]["state"], why["calls"][0]["position"]) == ("waiting_for_slot", 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_an_engine_learns_of_an_end_at_once() -> None:
    """Its memory is free before another call comes."""
    async with engine_of_others() as engine, gateway(engine) as rig:
        await rig.reports("up")
        await rig.chat()
        async with rig.client.delete(rig.url + "/autellix/v1/programs/p") as response:
            assert response.status < 300
        assert engine.report_server is not None
        ends = engine.report_server.take_ends
        await until(lambda: next(ends(), None) == "p")


async def test_what_is_active_is_said_in_one_line() -> None:
    async with engine_of_others(policy="plas") as engine, gateway(engine) as rig:
        await rig.reports("up")
        row = await rig.engine()
        said = "Autellix scheduler 0 on vLLM fake: policy plas, admission off, 256 slots; reports from tcp://"
        assert row["scheduling"].startswith(said)
        assert (row["engine_version"], row["scheduler_version"], row["policy"]) == ("fake", "0", "plas")
        ready = {"status": "ready", "engines": {"fake-0": "up"}, "ordered_by": {"fake-0": "engine"}}
        assert await rig.get("/readyz") == ready


async def test_the_ready_line_names_the_policy_of_the_engines_that_order() -> None:
    async with engine_of_others(policy="plas") as engine, gateway(engine, policy="boost") as rig:
        await rig.reports("up")
        parts = rig.app.state.gateway
        with socket.create_server(("127.0.0.1", 0)) as listener:
            assert "(policy plas);" in ready_line(parts.settings, parts.pool, listener)


@pytest.mark.parametrize(
    ("ours", "theirs", "state", "said"),
    [
        ("another secret, as long", SECRET, "refused", "refuses our secret"),
        (SECRET, None, "refused", "or not set"),
        (None, SECRET, "refused", "engine.report_secret is not set here"),
        (None, None, "refused", "engine.report_secret is not set here"),
    ],
)
async def test_a_wrong_or_missing_secret_is_said_everywhere(
    ours: str | None, theirs: str | None, state: str, said: str
) -> None:
    there = engine_of_others(report_secret=theirs, behaviour=SLOW)
    async with there as engine, gateway(engine, secret=ours) as rig:
        await rig.reports(state)
        assert said in (await rig.engine())["scheduling"]
        ready = await rig.get("/readyz")
        assert ready["status"] == "degraded"
        assert said in ready["reason"]
        task = asyncio.create_task(rig.chat())
        await engine.wait_until(lambda: bool(engine.calls))
        why = await rig.get("/autellix/v1/programs/p/why")
        assert said in why["calls"][0]["text"]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_calls_that_wait_are_sent_when_the_engine_shows_its_scheduler() -> None:
    address = free_address()
    behaviour = FakeBehaviour(token_delay_s=0.02, output_tokens=1000)
    async with engine_of_others(address, behaviour=behaviour) as engine:
        server, engine.report_server = engine.report_server, None
        assert server is not None
        await asyncio.to_thread(server.close)
        async with gateway(engine, max_in_flight=1) as rig:
            await rig.reports("absent")
            tasks = [asyncio.create_task(rig.chat(f"p{number}")) for number in range(3)]
            await until(lambda: len(rig.handle.queue) == 2)
            engine.listen()
            await until(lambda: len(engine.calls) == 3)
            assert len(rig.handle.queue) == 0
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await until(lambda: rig.handle.queue.busy_since_s is None)


async def test_a_plain_server_in_its_place_is_ordered_here_again() -> None:
    async with engine_of_others() as engine, gateway(engine, max_in_flight=1) as rig:
        await rig.reports("up")
        assert not rig.handle.queue.has_policy
        server, engine.report_server = engine.report_server, None
        assert server is not None
        await asyncio.to_thread(server.close)
        await rig.reports("absent")
        await until(lambda: rig.handle.queue.has_policy)
        assert "no report port" in (await rig.engine())["scheduling"]
        assert (await rig.get("/readyz"))["status"] == "ready"


async def test_an_engine_that_our_scheduler_does_not_fit_is_ordered_here() -> None:
    """It says why, and no call waits for its report."""
    address, behaviour = free_address(), FakeBehaviour(sends_reports=False)
    there = engine_of_others(address, behaviour=behaviour)
    async with there as engine, gateway(engine, max_in_flight=1) as rig:
        await rig.reports("up")
        assert engine.report_server is not None
        await asyncio.to_thread(engine.report_server.close)
        why = "it runs vLLM's own order: this vLLM 0.34 lacks waiting"
        engine.listen(is_degraded=True, problem="this vLLM 0.34 lacks waiting")
        await until(lambda: rig.handle.queue.has_policy)
        assert (await rig.chat())["autellix"]["estimated"] is True
        row = await rig.engine()
        assert (row["reporting"], row["sends_reports"], row["ordered_by"]) == ("up", False, "gateway")
        assert f"{why}; ordered by the gateway (plas), at most 1 call in flight" in row["scheduling"]
        assert (await rig.get("/readyz"))["reason"] == f"fake-0: {why}"
        async with rig.client.get(rig.url + "/metrics") as response:
            assert 'autellix_engine_degraded{engine="fake-0"} 1.0' in await response.text()
        await asyncio.to_thread(engine.report_server.close)
        engine.listen()
        await until(lambda: not rig.handle.queue.has_policy)
        await until(lambda: rig.handle.reporting.problem is None)


async def test_an_engine_whose_scheduler_has_failed_is_not_silent() -> None:
    """It sends no snapshots any more; its calls are not cut off for that."""
    async with engine_of_others(behaviour=SLOW) as engine, gateway(engine) as rig:
        await rig.reports("up")
        assert engine.report_server is not None
        engine.report_server.broadcast(snapshot())
        await until(lambda: rig.handle.snapshots.merged is not None)
        call = asyncio.create_task(rig.chat())
        await until(lambda: rig.handle.silence_s() > 0.0)
        await asyncio.to_thread(engine.report_server.close)
        engine.listen(is_degraded=True)
        await until(lambda: rig.handle.link.runs_own_order)
        assert rig.handle.silence_s() == 0.0
        assert rig.handle.snapshots.merged is None
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)


async def test_a_restart_between_two_probes_is_noticed() -> None:
    address = free_address()
    async with engine_of_others(address) as engine, gateway(engine) as rig:
        await rig.reports("up")
        assert engine.report_server is not None
        engine.report_server.broadcast(snapshot())
        await until(lambda: rig.handle.snapshots.merged is not None)
        await asyncio.to_thread(engine.report_server.close)
        engine.listen()
        await until(lambda: rig.handle.snapshots.merged is None)
        await rig.reports("up")
        assert (await rig.chat())["autellix"]["estimated"] is False
