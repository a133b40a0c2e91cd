"""Several engines behind one gateway: balancing, adding and removing engines, and deaths."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from fastapi import FastAPI
from tests.gateway.conftest import until, until_async
from tests.serving import listening
from tests.waiting import PATIENCE_S

from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.policies import make_policy
from autellix_backend.engines import supervisor
from autellix_backend.engines.base import EngineUnreachableError
from autellix_backend.gateway.app import create_app
from autellix_backend.gateway.engines import handle
from autellix_backend.settings import BalancerSettings, EngineSettings, GatewaySettings, Settings
from autellix_backend.stores.memory import MemoryStore
from autellix_lab.fakes.engine import FakeBehaviour, FakeEngine

CHAT = "/v1/chat/completions"
ENGINES = "/autellix/v1/engines"
PROGRAM = "X-Autellix-Program-ID"


@dataclass(slots=True)
class Rig:
    """A gateway in front of several fake engines."""

    url: str
    client: aiohttp.ClientSession
    engines: list[FakeEngine]
    app: FastAPI

    async def chat(self, program: str = "p", content: str = "hello", **fields: Any) -> tuple[int, str]:
        """Make a call; return its status and the engine that its receipt names."""
        body = {"model": "m", "messages": [{"role": "user", "content": content}], **fields}
        async with self.client.post(self.url + CHAT, json=body, headers={PROGRAM: program}) as response:
            await response.read()
            return response.status, response.headers["X-Autellix-Engine"]

    def close_gates(self) -> asyncio.Event:
        """Have the engines answer further calls only once the returned event is set."""
        gate = asyncio.Event()
        for engine in self.engines:
            engine.behaviour = FakeBehaviour(gate=gate)
        return gate

    async def chats_at_once(
        self, gate: asyncio.Event, calls: Sequence[tuple[str, str]]
    ) -> list[tuple[int, str]]:
        """Make calls by program and content that are all open before any is answered; return the answers."""
        tasks = [asyncio.create_task(self.chat(*call)) for call in calls]
        await until(lambda: sum(member.open_calls for member in self.app.state.components.pool) == len(tasks))
        gate.set()
        return await asyncio.gather(*tasks)

    async def ask(self, method: str, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
        """Ask for something below the list of engines."""
        async with self.client.request(method, self.url + ENGINES + path, json=body or None) as response:
            return response.status, await response.json()

    async def text(self, path: str) -> tuple[int, str]:
        """Read a page."""
        async with self.client.get(self.url + path) as response:
            return response.status, await response.text()

    async def names(self) -> list[str]:
        """Return the engines by name."""
        return [engine["name"] for engine in (await self.ask("GET", ""))[1]["engines"]]


@pytest.fixture(autouse=True)
def quick_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "RESTART_DELAY_S", 0.0)


@asynccontextmanager
async def serving(
    *behaviours: FakeBehaviour,
    balancer: str = "round_robin",
    threshold_tokens: int = 50,
    is_owned: bool = True,
    **engine: Any,
) -> AsyncIterator[Rig]:
    """Serve one fake engine for each behaviour; at the end nothing may be left of calls and programs."""
    engines = [
        FakeEngine(behaviour, name=f"fake-{at}", is_owned=is_owned) for at, behaviour in enumerate(behaviours)
    ]
    for fake in engines:
        await fake.start()
    settings = Settings(
        gateway=GatewaySettings(recovery_wait_s=PATIENCE_S),
        engine=EngineSettings(**engine),
        scheduler=SchedulerConfig(policy="plas"),
        balancer=BalancerSettings(name=balancer, threshold_tokens=threshold_tokens),
    )
    store = MemoryStore(make_policy("plas"), program_idle_s=600.0, session_ttl_s=30.0)
    app = create_app(settings, *engines, store=store)
    try:
        async with listening(app) as url, aiohttp.ClientSession() as client:
            yield Rig(url, client, engines, app)

            async def is_settled() -> bool:
                return (await store.counts()).active_calls == 0

            await until_async(is_settled)
            await until(lambda: all(not member.open_calls for member in app.state.components.pool))
    finally:
        for fake in engines:
            await fake.stop()


async def test_calls_take_turns(wait_until: Any) -> None:
    async with serving(*[FakeBehaviour()] * 3) as rig:
        told = [(await rig.chat())[1] for _ in range(6)]
        assert told == ["fake-0", "fake-1", "fake-2"] * 2
        assert [len(engine.calls) for engine in rig.engines] == [2, 2, 2]


async def test_a_call_goes_where_fewest_are_open() -> None:
    """Our own open calls count at once, not with the engine's next snapshot."""

    gate = asyncio.Event()
    async with serving(*[FakeBehaviour(gate=gate)] * 3, balancer="least_used") as rig:
        answers = await rig.chats_at_once(gate, [(f"p{at}", "hello") for at in range(9)])
        assert Counter(engine for _, engine in answers) == {"fake-0": 3, "fake-1": 3, "fake-2": 3}


async def test_the_pin_of_a_program_goes_with_the_program() -> None:
    async with serving(FakeBehaviour(), FakeBehaviour(), balancer="locality") as rig:
        await rig.chat("p", "word " * 400)
        router = rig.app.state.components.router
        assert set(router._balancer._pins) == {"p"}
        async with rig.client.delete(rig.url + "/autellix/v1/programs/p") as response:
            assert response.status == 204
        assert not router._balancer._pins
        assert not router._programs


async def test_a_refused_call_leaves_no_pin_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle, "MAX_WAITING_BYTES", 10)
    async with serving(FakeBehaviour(), FakeBehaviour(), balancer="locality") as rig:
        body = {"model": "m", "messages": [{"role": "user", "content": "word " * 400}]}
        async with rig.client.post(rig.url + CHAT, json=body, headers={PROGRAM: "p"}) as response:
            assert response.status == 503
        assert not rig.app.state.components.router._balancer._pins


async def test_calls_avoid_a_full_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle, "MAX_WAITING_CALLS", 1)
    gate = asyncio.Event()
    async with serving(*[FakeBehaviour(gate=gate)] * 2, balancer="locality") as rig:
        answers = await rig.chats_at_once(gate, [("p", "word " * 400)] * 2)
        assert sorted(answers) == [(200, "fake-0"), (200, "fake-1")]


async def test_calls_of_a_dying_engine_are_answered_by_the_others() -> None:
    gate = asyncio.Event()
    async with serving(*[FakeBehaviour(gate=gate)] * 3, max_restarts=0) as rig:
        calls = [asyncio.create_task(rig.chat(f"p{at}")) for at in range(12)]
        dying = rig.engines[1]
        await dying.wait_until(lambda: len(dying.calls) == 4)
        await dying.kill()
        gate.set()
        answers = await asyncio.gather(*calls)
        assert {status for status, _ in answers} == {200}
        assert {engine for _, engine in answers} == {"fake-0", "fake-2"}
        assert (await rig.text("/readyz"))[0] == 200
        assert 'autellix_redispatches_total{engine="fake-1"} 4.0' in (await rig.text("/metrics"))[1]
        assert {(await rig.chat())[1] for _ in range(4)} == {"fake-0", "fake-2"}


async def test_no_call_waits_for_a_dead_engine_when_another_is_up_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def is_not_there() -> None:
        # Otherwise the supervisor, which tries to reach the server of others, would start the fake one.
        raise EngineUnreachableError("http://gpu1:8000", "does not answer")

    async with serving(FakeBehaviour(), FakeBehaviour(), is_owned=False) as rig:
        start = rig.engines[1].start
        for engine in rig.engines:
            monkeypatch.setattr(engine, "start", is_not_there)
            await engine.kill()
        waiting = [asyncio.create_task(rig.chat(f"p{at}")) for at in range(4)]
        pool = rig.app.state.components.pool
        await until(lambda: sum(len(member.queue) for member in pool) == 4)
        assert (await rig.text("/readyz"))[0] == 503
        monkeypatch.setattr(rig.engines[1], "start", start)
        assert set(await asyncio.gather(*waiting)) == {(200, "fake-1")}


async def test_no_call_is_lost_while_an_engine_is_drained_and_removed() -> None:
    slow = FakeBehaviour(token_delay_s=0.01)
    async with serving(slow, slow, slow) as rig:
        calls = [asyncio.create_task(rig.chat(f"p{at}")) for at in range(60)]
        leaving = rig.engines[0]
        await leaving.wait_until(lambda: len(leaving.calls) >= 5)
        status, told = await rig.ask("POST", "/fake-0/drain")
        assert (status, told["state"]) == (200, "draining")
        late = [asyncio.create_task(rig.chat(f"q{at}")) for at in range(20)]
        assert (await rig.ask("DELETE", "/fake-0"))[0] == 202
        answers = await asyncio.gather(*calls, *late)
        assert {status for status, _ in answers} == {200}
        assert "fake-0" not in {engine for _, engine in answers[60:]}

        async def has_left() -> bool:
            return await rig.names() == ["fake-1", "fake-2"]

        await until_async(has_left)
        await until(lambda: not leaving.is_alive())
        assert 'engine="fake-0"' not in (await rig.text("/metrics"))[1]


async def test_calls_queued_for_a_drained_engine_go_elsewhere() -> None:
    gate = asyncio.Event()
    async with serving(*[FakeBehaviour(gate=gate)] * 2, max_in_flight=1) as rig:
        calls = [asyncio.create_task(rig.chat(f"p{at}")) for at in range(6)]
        pool = rig.app.state.components.pool
        await until(lambda: [len(pool.get(name).queue) for name in ("fake-0", "fake-1")] == [2, 2])
        assert (await rig.ask("POST", "/fake-0/drain"))[1]["queued_calls"] == 0
        gate.set()
        answers = await asyncio.gather(*calls)
        assert Counter(answers) == {(200, "fake-0"): 1, (200, "fake-1"): 5}


async def test_a_drained_engine_is_undrained() -> None:
    """As is one that waiting calls were sent away from; one that leaves is not."""

    async with serving(FakeBehaviour(), FakeBehaviour(), max_in_flight=1) as rig:
        await rig.ask("POST", "/fake-0/drain")
        assert (await rig.chat())[1] == "fake-1"
        status, told = await rig.ask("POST", "/fake-0/undrain")
        assert (status, told["state"]) == (200, "up")
        gate = rig.close_gates()
        answers = await rig.chats_at_once(gate, [(f"p{at}", "hello") for at in range(4)])
        assert Counter(answers) == {(200, "fake-0"): 2, (200, "fake-1"): 2}
        assert (await rig.ask("POST", "/fake-0/undrain"))[0] == 200
        gate = rig.close_gates()
        last = asyncio.create_task(rig.chat("p"))
        pool = rig.app.state.components.pool
        await until(lambda: any(member.open_calls for member in pool))
        leaving = next(member.name for member in pool if member.open_calls)
        await rig.ask("DELETE", f"/{leaving}")
        status, told = await rig.ask("POST", f"/{leaving}/undrain")
        assert (status, told["error"]["code"], told["error"]["param"]) == (409, "conflict", "name")
        gate.set()
        assert (await last)[0] == 200
        assert (await rig.ask("POST", "/nobody/undrain"))[0] == 404


async def test_an_engine_is_added_at_run_time() -> None:
    async with serving(FakeBehaviour()) as rig:
        late = FakeEngine(name="late")
        await late.start()
        status, told = await rig.ask("POST", "", url=late.base_url + "/v1")
        assert (status, told["name"], told["state"]) == (201, "remote-0", "up")
        assert {(await rig.chat())[1] for _ in range(4)} == {"fake-0", "remote-0"}
        status, told = await rig.ask("POST", "", url=late.base_url, name="remote-0")
        assert (status, told["error"]["code"], told["error"]["param"]) == (409, "conflict", "name")
        await rig.ask("DELETE", "/remote-0")
        await late.stop()


async def test_the_last_engine_cannot_be_removed() -> None:
    async with serving(FakeBehaviour(), FakeBehaviour()) as rig:
        assert (await rig.ask("POST", "/fake-0/drain"))[0] == 200
        for method, path in (("POST", "/fake-1/drain"), ("DELETE", "/fake-1")):
            status, told = await rig.ask(method, path)
            assert (status, told["error"]["code"]) == (409, "conflict")
        assert (await rig.chat()) == (200, "fake-1")
        assert (await rig.ask("DELETE", "/nobody"))[0] == 404


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"url": "ftp://host"}, "url"),
        ({"url": "http://127.0.0.1:9", "kind": "magic"}, "kind"),
        ({"url": "http://127.0.0.1:9", "name": "a/b"}, "name"),
        ({"name": "a"}, "url"),
    ],
)
async def test_an_invalid_engine_is_refused(body: dict[str, Any], param: str) -> None:
    async with serving(FakeBehaviour()) as rig:
        status, told = await rig.ask("POST", "", **body)
        assert (status, told["error"]["param"]) == (400, param)
        assert await rig.names() == ["fake-0"]


async def test_an_engine_of_another_model_is_refused() -> None:
    async with serving(FakeBehaviour()) as rig:
        other = FakeEngine(FakeBehaviour(models=("another",)))
        await other.start()
        status, told = await rig.ask("POST", "", url=other.base_url)
        assert (status, told["error"]["param"]) == (409, "url")
        assert "fake-0 serves autellix.fake-model; remote-0 serves another" in told["error"]["message"]
        other.behaviour = FakeBehaviour(models=("autellix.fake-model", "an-adapter"))
        assert (await rig.ask("POST", "", url=other.base_url))[0] == 201
        await rig.ask("DELETE", "/remote-0")
        await other.stop()
