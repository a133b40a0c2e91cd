"""Calls wait where the engine is full or down, and are sent again where it died under them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from tests.fakes.engine import FakeBehaviour, FakeEngine, Fault
from tests.waiting import PATIENCE_S, until

from autellix_backend.engines import supervisor
from autellix_backend.gateway.engines import handle, pool

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"model": "autellix.fake-model", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(autouse=True)
def quick_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "PROBE_PERIOD_S", 0.05)


@pytest.fixture(autouse=True)
def quick_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "RESTART_DELAY_S", 0.01)


async def metric(rig: Any, name: str) -> float:
    async with rig.client.get(rig.url + "/metrics") as response:
        lines = (await response.text()).splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


async def queued_calls(rig: Any) -> int:
    _, answer = await rig.get("/autellix/v1/engines")
    count: int = answer["engines"][0]["queued_calls"]
    return count


async def until_queued(rig: Any, count: int) -> None:
    async def are_queued() -> bool:
        return await queued_calls(rig) == count

    await until(are_queued)


async def post(rig: Any, program: str = "p", **fields: Any) -> tuple[int, dict[str, str], dict[str, Any]]:
    headers = {"X-Autellix-Program-ID": program}
    async with rig.client.post(rig.url + CHAT, json={**HELLO, **fields}, headers=headers) as response:
        content = await response.read()
        names = {name.lower(): value for name, value in response.headers.items()}
        return response.status, names, {} if fields.get("stream") else json.loads(content)


@contextlib.asynccontextmanager
async def kept_down(engine: FakeEngine) -> AsyncIterator[None]:
    """Kill the engine, and let no start succeed meanwhile."""

    async def refuse() -> None:
        raise OSError("not yet")

    start, engine.start = engine.start, refuse  # type: ignore[method-assign]
    await engine.kill("it fell")
    try:
        yield
    finally:
        engine.start = start  # type: ignore[method-assign]


@pytest.mark.parametrize("is_streaming", [False, True])
async def test_a_call_waits_for_the_engines_return(serve: Any, is_streaming: bool) -> None:
    async with serve(engine_settings={"max_restarts": 1000}) as rig:
        async with kept_down(rig.engine):
            call = asyncio.create_task(post(rig, stream=is_streaming))
            await until_queued(rig, 1)
            assert rig.engine.calls == []
        status, headers, _ = await call
        assert (status, headers["x-autellix-program-id"]) == (200, "p")
        assert await metric(rig, "autellix_redispatches_total") == 0
        program = await rig.store.program("p")
        assert program is not None and program.wait_s > 0


@pytest.mark.parametrize("is_streaming", [False, True])
async def test_a_call_whose_engine_died_before_the_first_byte_is_sent_once_more(
    serve: Any, is_streaming: bool
) -> None:
    slow = FakeBehaviour(token_delay_s=5.0)
    async with serve(slow, engine_settings={"max_restarts": 1000}) as rig:
        call = asyncio.create_task(post(rig, stream=is_streaming))
        await rig.engine.wait_until(lambda: len(rig.engine.calls) == 1)
        # Its answer takes longer than the report link needs to connect again.
        rig.engine.behaviour = FakeBehaviour(token_delay_s=0.2)
        async with kept_down(rig.engine):
            await until_queued(rig, 1)
        status, _, answer = await call
        assert status == 200
        first, second = (request.xargs["autellix_call"] for request in rig.engine.calls)
        assert first != second
        assert await metric(rig, "autellix_redispatches_total") == 1
        if not is_streaming:
            assert answer["autellix"]["estimated"] is False
        program = await rig.store.program("p")
        assert program is not None and program.finished_calls == 1
        assert program.service_s == pytest.approx(0.04)


async def test_a_call_under_which_every_engine_dies_is_given_up(serve: Any) -> None:
    async with serve(FakeBehaviour(token_delay_s=5.0)) as rig:

        async def poison() -> None:
            for count in range(1, 5):
                await rig.engine.wait_until(lambda count=count: len(rig.engine.calls) == count)
                await rig.engine.kill("it choked")

        killer = asyncio.create_task(poison())
        status, headers, answer = await post(rig)
        assert (status, headers["x-should-retry"]) == (503, "false")
        assert answer["error"]["code"] == "engine_unavailable"
        assert "fake-0 is not reachable" in answer["error"]["message"]
        assert len(rig.engine.calls) == 2
        killer.cancel()


async def test_an_error_of_a_dying_engine_is_no_answer(serve: Any) -> None:
    """An engine that answers 500 while its health path says that it is broken: the call is sent again."""

    broken = FakeBehaviour(fault=Fault.ERROR, health_status=503)
    async with serve(broken) as rig:
        call = asyncio.create_task(post(rig))
        await rig.engine.wait_until(lambda: len(rig.engine.calls) == 1)
        await until_queued(rig, 1)
        rig.engine.behaviour = FakeBehaviour()
        assert (await call)[0] == 200


async def test_an_engine_that_dies_in_mid_stream_is_back_for_the_next_call(serve: Any) -> None:
    behaviour = FakeBehaviour(output_tokens=1000, token_delay_s=0.01)
    async with serve(behaviour) as rig:
        async with rig.client.post(rig.url + CHAT, json={**HELLO, "stream": True}) as response:
            assert await response.content.readuntil(b"\n\n")
            await rig.engine.kill("it fell")
            events = (await response.read()).split(b"\n\n")
        errors = [json.loads(event[6:])["error"] for event in events if event.startswith(b'data: {"error"')]
        assert [(error["code"], error["retryable"]) for error in errors] == [("engine_unavailable", False)]
        assert "it fell" in errors[0]["message"]
        assert len(rig.engine.calls) == 1
        rig.engine.behaviour = FakeBehaviour()
        assert (await post(rig))[0] == 200


async def test_an_idle_engine_that_sends_no_reports_is_kept(serve: Any) -> None:
    settings = {"stall_timeout_s": 0.1, "max_restarts": 1000}
    async with serve(engine_settings=settings) as rig:
        await asyncio.sleep(0.5)
        assert await metric(rig, "autellix_engine_restarts_total") == 0


async def test_an_engine_that_sends_no_reports_of_its_calls_is_replaced(serve: Any) -> None:
    # Long enough for a loaded machine to answer a call on the engine that replaces this one.
    settings = {"stall_timeout_s": 2.0, "max_restarts": 1000}
    async with serve(FakeBehaviour(fault=Fault.HANG), engine_settings=settings) as rig:
        restarts = "autellix_engine_restarts_total"
        call = asyncio.create_task(post(rig))
        await rig.engine.wait_until(lambda: len(rig.engine.calls) == 1)
        rig.engine.behaviour = FakeBehaviour()
        assert (await call)[0] == 200
        assert await metric(rig, restarts) >= 1


async def test_a_call_that_waited_too_long_gets_a_503(serve: Any) -> None:
    settings = {"max_restarts": 1000}
    async with serve(engine_settings=settings, recovery_wait_s=0.3) as rig:
        async with kept_down(rig.engine):
            status, headers, answer = await post(rig)
        assert (status, headers["retry-after"], headers["x-should-retry"]) == (503, "1", "true")
        assert answer["error"]["code"] == "engine_unavailable"
        assert await metric(rig, 'autellix_refusals_total{reason="engine_unavailable"') == 1
        program = await rig.store.program("p")
        assert program is not None and program.service_s == 0


async def test_no_call_waits_for_an_engine_that_stays_dead(serve: Any) -> None:
    async with serve(engine_settings={"max_restarts": 0}) as rig:
        await rig.engine.kill("it fell")
        async with asyncio.timeout(PATIENCE_S):
            status, _, answer = await post(rig)
        assert status == 503
        assert "it fell" in answer["error"]["message"]


async def test_a_client_that_disconnects_removes_its_waiting_call(serve: Any) -> None:
    slow = FakeBehaviour(output_tokens=1000, token_delay_s=0.01)
    async with serve(slow, reports=False, engine_settings={"max_in_flight": 1}) as rig:
        running = asyncio.create_task(post(rig, "running"))
        await rig.engine.wait_until(lambda: len(rig.engine.calls) == 1)
        queued = asyncio.create_task(post(rig, "queued"))
        await until_queued(rig, 1)
        _, why = await rig.get("/autellix/v1/programs/queued/why")
        assert "the calls in flight at fake-0 have reached the limit of 1" in json.dumps(why)
        queued.cancel()
        await until_queued(rig, 0)
        running.cancel()
        await rig.settled()
        program = await rig.store.program("queued")
        assert program is not None
        (end,) = [view.end for view in program.calls]
        assert (end.outcome, end.service_s) == ("aborted", 0.0)
        assert end.wait_s > 0
        assert len(rig.engine.calls) == 1
        rig.engine.behaviour = FakeBehaviour()
        assert (await post(rig))[0] == 200, "the slot is free again"


async def test_the_gateway_orders_calls_of_an_engine_without_our_scheduler(serve: Any) -> None:
    """The programs with less service go first; never more than max_in_flight calls are at the engine."""

    gate = asyncio.Event()
    async with serve(reports=False, engine_settings={"max_in_flight": 1}) as rig:
        await post(rig, "old")
        await post(rig, "old")
        rig.engine.behaviour = FakeBehaviour(gate=gate)
        calls = [asyncio.create_task(post(rig, "first"))]
        await rig.engine.wait_until(lambda: len(rig.engine.calls) == 3)
        for number, program in enumerate(["old", "old", "new", "new"], start=1):
            calls.append(asyncio.create_task(post(rig, program)))
            await until_queued(rig, number)
        gate.set()
        receipts = [answer["autellix"] for _, _, answer in await asyncio.gather(*calls)]
        order = [request.xargs["autellix_program"] for request in rig.engine.calls[2:]]
        assert order == ["first", "new", "new", "old", "old"]
        assert receipts[0]["wait_s"] < receipts[1]["wait_s"]
        assert receipts[1]["service_s"] < 1.0, "waiting here is no service"


@pytest.mark.parametrize(
    ("bound", "limit", "reason"), [("MAX_WAITING_CALLS", 1, "calls"), ("MAX_WAITING_BYTES", 130, "bytes")]
)
async def test_calls_beyond_the_bounds_are_refused(
    serve: Any, monkeypatch: pytest.MonkeyPatch, bound: str, limit: int, reason: str
) -> None:
    monkeypatch.setattr(handle, bound, limit)
    async with serve(FakeBehaviour(fault=Fault.HANG)) as rig:
        waiting = asyncio.create_task(post(rig))
        await rig.engine.wait_until(lambda: len(rig.engine.calls) == 1)
        status, headers, answer = await post(rig, "other")
        assert (status, headers["retry-after"], headers["x-should-retry"]) == (503, "1", "true")
        assert answer["error"]["code"] == "overloaded"
        assert f"the limit is {limit} {reason}" in answer["error"]["message"]
        assert await metric(rig, f'autellix_refusals_total{{reason="queue_{reason}"') == 1
        assert await metric(rig, "autellix_unanswered_calls") == 1
        waiting.cancel()
        await rig.settled()
        assert await rig.store.program("other") is None
        rig.engine.behaviour = FakeBehaviour()
        assert (await post(rig))[0] == 200
        assert await metric(rig, "autellix_unanswered_bytes") == 0


async def test_calls_wait_for_an_engine_that_cannot_be_reached(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A remote engine dies and returns: calls wait, and go on by themselves."""

    engine = FakeEngine(is_owned=False)
    monkeypatch.setattr(supervisor, "PROBE_PERIOD_S", 100.0)
    async with serve(engine=engine, reports=False) as rig:
        alive = engine.is_alive
        # As a remote engine, which has no process to look at; the supervisor would start one that is dead.
        engine.is_alive = lambda: True  # type: ignore[method-assign]
        await engine.stop()
        calls = [asyncio.create_task(post(rig, f"p{number}")) for number in range(5)]
        await until_queued(rig, 5)
        await engine.start()
        engine.is_alive = alive  # type: ignore[method-assign]
        assert [status for status, _, _ in await asyncio.gather(*calls)] == [200] * 5
        assert await metric(rig, "autellix_engine_up") == 1


async def test_a_gateway_that_drains_refuses_waiting_and_fresh_calls_and_ends_the_running(serve: Any) -> None:
    gate = asyncio.Event()
    async with serve(FakeBehaviour(gate=gate), reports=False, engine_settings={"max_in_flight": 1}) as rig:
        running = asyncio.create_task(post(rig, "running"))
        await rig.engine.wait_until(lambda: len(rig.engine.calls) == 1)
        queued = asyncio.create_task(post(rig, "queued"))
        await until_queued(rig, 1)
        rig.app.state.gateway.pool.shut_down()
        for status, headers, answer in (await queued, await post(rig, "fresh")):
            assert (status, headers["retry-after"], headers["connection"]) == (503, "1", "close")
            assert answer["error"]["code"] == "shutting_down"
        assert (await rig.get("/readyz"))[0] == 503
        assert (await rig.get("/healthz"))[0] == 200
        gate.set()
        assert (await running)[0] == 200


async def test_the_official_client_does_not_repeat_a_call_that_timed_out(serve: Any) -> None:
    async with (
        serve(FakeBehaviour(fault=Fault.HANG), upstream_timeout_s=0.2) as rig,
        openai.AsyncOpenAI(base_url=rig.url + "/v1", api_key="k") as client,
    ):
        with pytest.raises(openai.InternalServerError):
            await client.chat.completions.create(**HELLO)
        assert len(rig.engine.calls) == 1


async def test_a_program_waits_until_its_context_fits_into_an_engine_that_reports_nothing(serve: Any) -> None:
    """Estimates decide: the length of the prompt, then the tokens of the answers, until the program ends."""
    options = {"policy": "boost", "admission": "working_set", "reports": False}
    long = {"messages": [{"role": "user", "content": "word " * 300}]}
    behaviour = FakeBehaviour(fault=Fault.HANG)
    async with serve(behaviour, engine_settings={"kv_tokens": 660}, **options) as rig:
        running = asyncio.create_task(post(rig, "p", **long))
        await rig.engine.wait_until(lambda: len(rig.engine.calls) == 1)
        waiting = asyncio.create_task(post(rig, "q", **long))
        await until_queued(rig, 1)
        _, answer = await rig.get("/autellix/v1/programs/q/why")
        (call,) = answer["calls"]
        assert call["state"] == "waiting_for_memory"
        assert " at the gateway: it waits for KV memory: it needs 3" in call["text"]
        assert " of 627 are free. No program is ahead of it" in call["text"]
        assert "(estimated by the gateway: this engine does not report its memory)." in call["text"]
        rig.engine.behaviour = FakeBehaviour()
        running.cancel()
        await rig.client.delete(rig.url + "/autellix/v1/programs/p")
        assert (await waiting)[0] == 200


async def test_a_program_takes_the_place_of_one_that_does_not_return_in_a_moment(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else happens at the gateway meanwhile."""
    monkeypatch.setattr(pool, "REVIEW_PERIOD_S", 1e6)
    options = {"policy": "boost", "admission": "working_set", "reports": False}
    long = {"messages": [{"role": "user", "content": "word " * 300}]}
    async with serve(FakeBehaviour(token_delay_s=0.1), engine_settings={"kv_tokens": 400}, **options) as rig:
        assert (await post(rig, "p", **long))[0] == 200
        assert (await post(rig, "q", **long))[0] == 200
