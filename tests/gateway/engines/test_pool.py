"""Several engines behind one gateway: balancing, adding and removing engines, and deaths."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from tests.fakes.engine import FakeBehaviour, FakeEngine
from tests.gateway.engines.pools import CHAT, PROGRAM, serving_pool
from tests.waiting import until

from autellix_backend.engines import supervisor
from autellix_backend.engines.base import EngineUnreachableError
from autellix_backend.gateway.engines import handle


@pytest.fixture(autouse=True)
def quick_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "RESTART_DELAY_S", 0.0)


async def test_calls_take_turns(wait_until: Any) -> None:
    async with serving_pool(*[FakeBehaviour()] * 3) as rig:
        told = [(await rig.chat())[1] for _ in range(6)]
        assert told == ["fake-0", "fake-1", "fake-2"] * 2
        assert [len(engine.calls) for engine in rig.engines] == [2, 2, 2]


async def test_a_call_goes_where_fewest_are_open() -> None:
    """Our own open calls count at once, not with the engine's next snapshot."""

    gate = asyncio.Event()
    async with serving_pool(*[FakeBehaviour(gate=gate)] * 3, balancer="least_used") as rig:
        answers = await rig.chats_at_once(gate, [(f"p{at}", "hello") for at in range(9)])
        assert Counter(engine for _, engine in answers) == {"fake-0": 3, "fake-1": 3, "fake-2": 3}


async def test_the_pin_of_a_program_goes_with_the_program() -> None:
    async with serving_pool(FakeBehaviour(), FakeBehaviour(), balancer="locality") as rig:
        await rig.chat("p", "word " * 400)
        router = rig.app.state.gateway.router
        assert set(router._balancers[0]._pins) == {"p"}
        async with rig.client.delete(rig.url + "/autellix/v1/programs/p") as response:
            assert response.status == 204
        assert not router._balancers[0]._pins
        assert not router._programs


async def test_a_refused_call_leaves_no_pin_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle, "MAX_WAITING_BYTES", 10)
    async with serving_pool(FakeBehaviour(), FakeBehaviour(), balancer="locality") as rig:
        body = {"model": "m", "messages": [{"role": "user", "content": "word " * 400}]}
        async with rig.client.post(rig.url + CHAT, json=body, headers={PROGRAM: "p"}) as response:
            assert response.status == 503
        assert not rig.app.state.gateway.router._balancers[0]._pins


async def test_calls_avoid_a_full_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle, "MAX_WAITING_CALLS", 1)
    gate = asyncio.Event()
    async with serving_pool(*[FakeBehaviour(gate=gate)] * 2, balancer="locality") as rig:
        answers = await rig.chats_at_once(gate, [("p", "word " * 400)] * 2)
        assert sorted(answers) == [(200, "fake-0"), (200, "fake-1")]


async def test_calls_of_a_dying_engine_are_answered_by_the_others() -> None:
    gate = asyncio.Event()
    async with serving_pool(*[FakeBehaviour(gate=gate)] * 3, max_restarts=0) as rig:
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

    async with serving_pool(FakeBehaviour(), FakeBehaviour(), is_owned=False) as rig:
        start = rig.engines[1].start
        for engine in rig.engines:
            monkeypatch.setattr(engine, "start", is_not_there)
            await engine.kill()
        waiting = [asyncio.create_task(rig.chat(f"p{at}")) for at in range(4)]
        pool = rig.app.state.gateway.pool
        await until(lambda: sum(len(member.queue) for member in pool) == 4)
        assert (await rig.text("/readyz"))[0] == 503
        monkeypatch.setattr(rig.engines[1], "start", start)
        assert set(await asyncio.gather(*waiting)) == {(200, "fake-1")}


async def test_no_call_is_lost_while_an_engine_is_drained_and_removed() -> None:
    slow = FakeBehaviour(token_delay_s=0.01)
    async with serving_pool(slow, slow, slow) as rig:
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

        await until(has_left)
        await until(lambda: not leaving.is_alive())
        assert 'engine="fake-0"' not in (await rig.text("/metrics"))[1]


async def test_calls_queued_for_a_drained_engine_go_elsewhere() -> None:
    gate = asyncio.Event()
    async with serving_pool(*[FakeBehaviour(gate=gate)] * 2, max_in_flight=1) as rig:
        calls = [asyncio.create_task(rig.chat(f"p{at}")) for at in range(6)]
        pool = rig.app.state.gateway.pool
        await until(lambda: [len(pool.get(name).queue) for name in ("fake-0", "fake-1")] == [2, 2])
        assert (await rig.ask("POST", "/fake-0/drain"))[1]["queued_calls"] == 0
        gate.set()
        answers = await asyncio.gather(*calls)
        assert Counter(answers) == {(200, "fake-0"): 1, (200, "fake-1"): 5}


async def test_a_drained_engine_is_undrained() -> None:
    """As is one that waiting calls were sent away from; one that leaves is not."""

    async with serving_pool(FakeBehaviour(), FakeBehaviour(), max_in_flight=1) as rig:
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
        pool = rig.app.state.gateway.pool
        await until(lambda: any(member.open_calls for member in pool))
        leaving = next(member.name for member in pool if member.open_calls)
        await rig.ask("DELETE", f"/{leaving}")
        status, told = await rig.ask("POST", f"/{leaving}/undrain")
        assert (status, told["error"]["code"], told["error"]["param"]) == (409, "conflict", "name")
        gate.set()
        assert (await last)[0] == 200
        assert (await rig.ask("POST", "/nobody/undrain"))[0] == 404


async def test_an_engine_is_added_at_run_time() -> None:
    async with serving_pool(FakeBehaviour()) as rig:
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
    async with serving_pool(FakeBehaviour(), FakeBehaviour()) as rig:
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
    async with serving_pool(FakeBehaviour()) as rig:
        status, told = await rig.ask("POST", "", **body)
        assert (status, told["error"]["param"]) == (400, param)
        assert await rig.names() == ["fake-0"]
