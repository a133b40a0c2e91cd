"""The clock follows the engine's count, and goes on by itself only while the engine has nothing to do."""

from __future__ import annotations

import asyncio
import math

import aiohttp
import pytest
from aiohttp import web
from tests.fakes.engine import MODEL_NAME, FakeBehaviour, FakeEngine

from autellix_lab.bench.replay import ReplayError, ReplayJob, replay
from autellix_lab.bench.step_clock import (
    PREFILLED_TOKENS,
    STILL_STEPS,
    StepClock,
    step_reader,
    steps_at,
)
from autellix_lab.workload.trace import CallTrace, ProgramTrace

STEP_S = 0.5


class Engine:
    """An engine whose count and time the test sets."""

    def __init__(self) -> None:
        self.steps = 700.0
        self.now_s = 0.0

    async def read(self) -> float:
        return self.steps

    def now(self) -> float:
        return self.now_s


@pytest.fixture
def engine() -> Engine:
    return Engine()


def clock_of(engine: Engine, step_s: float = STEP_S) -> StepClock:
    return StepClock(engine.read, engine.now, step_s)


async def advance(engine: Engine, clock: StepClock, seconds: float, steps: float) -> float:
    """Let the engine make steps; return the clock's."""
    engine.now_s += seconds
    engine.steps += steps
    await clock.sample()
    return clock.samples[-1][1]


async def test_it_counts_the_steps_of_the_run(engine: Engine) -> None:
    """However long they take."""
    clock = clock_of(engine)
    await clock.sample()
    with clock.open_call():
        assert await advance(engine, clock, seconds=1.0, steps=40) == 40
        assert await advance(engine, clock, seconds=9.0, steps=2) == 42
        assert await advance(engine, clock, seconds=9.0, steps=0) == 42


async def test_an_idle_engine_advances_by_the_time_of_its_steps(engine: Engine) -> None:
    clock = clock_of(engine)
    await clock.sample()
    assert await advance(engine, clock, seconds=3.0, steps=0) == 6
    with clock.open_call():
        assert await advance(engine, clock, seconds=1.0, steps=0) == 6
    # A call was open since the sample before, and its last steps are counted.
    assert await advance(engine, clock, seconds=1.0, steps=1) == 7
    assert await advance(engine, clock, seconds=1.0, steps=0) == 9


async def test_an_engine_that_stands_still_with_calls_lets_time_pass(engine: Engine) -> None:
    """As one whose scheduler waits for a program that a tool has."""
    clock = clock_of(engine)
    await clock.sample()
    with clock.open_call():
        assert await advance(engine, clock, seconds=1.0, steps=5) == 5
        assert await advance(engine, clock, seconds=STILL_STEPS * STEP_S, steps=0) == 5
        assert await advance(engine, clock, seconds=2.0, steps=0) == 9
        assert await advance(engine, clock, seconds=1.0, steps=1) == 10
        assert await advance(engine, clock, seconds=1.0, steps=0) == 10


async def test_it_stands_without_a_time_of_steps(engine: Engine) -> None:
    clock = clock_of(engine, math.inf)
    await clock.sample()
    assert await advance(engine, clock, seconds=3.0, steps=0) == 0


async def test_an_arrival_waits_for_its_step(engine: Engine) -> None:
    clock = clock_of(engine)
    arrived = [asyncio.create_task(clock.reach(steps)) for steps in (0, 10, 11)]
    with clock.open_call():
        for steps, expected in ((0, 1), (9, 1), (1, 2), (1, 3)):
            await advance(engine, clock, seconds=1.0, steps=steps)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert sum(task.done() for task in arrived) == expected


def test_between_two_samples_steps_are_in_proportion() -> None:
    samples = [(0.0, 0.0), (1.0, 10.0), (1.0, 12.0), (3.0, 20.0)]
    found = [steps_at(samples, time_s) for time_s in (-1.0, 0.0, 0.5, 1.0, 2.0, 3.0, 4.0)]
    assert found == [0, 0, 5, 10, 16, 20, 20]


async def served(text: str) -> tuple[web.AppRunner, str]:
    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text=text)

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


async def test_a_gap_waits_for_as_many_steps_from_where_it_begins(engine: Engine) -> None:
    clock = clock_of(engine)
    await clock.sample()
    with clock.open_call():
        await advance(engine, clock, seconds=1.0, steps=7)
        waiting = asyncio.create_task(clock.wait(3))
        for steps, is_over in ((2, False), (1, True)):
            await asyncio.sleep(0)
            await advance(engine, clock, seconds=1.0, steps=steps)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert waiting.done() == is_over


async def test_steps_are_those_of_all_ranks_in_vllms_metrics() -> None:
    """And prefilled tokens, of which so many count as one."""
    lines = [
        "# TYPE vllm:iteration_tokens_total histogram",
        'vllm:iteration_tokens_total_bucket{engine="0",le="1.0"} 5.0',
        'vllm:iteration_tokens_total_count{engine="0",model_name="m"} 7.0',
        'vllm:iteration_tokens_total_created{engine="0",model_name="m"} 1.7e+09',
        'vllm:iteration_tokens_total_count{engine="1",model_name="m"} 1.2e+03',
        f'vllm:iteration_tokens_total_sum{{engine="0",model_name="m"}} {44 + 2 * PREFILLED_TOKENS}.0',
        'vllm:generation_tokens_total{engine="0",model_name="m"} 44.0',
        'vllm:prompt_tokens_total{engine="0",model_name="m"} 9999.0',
    ]
    runner, url = await served("\n".join(lines))
    try:
        async with aiohttp.ClientSession() as session:
            assert await step_reader(session, url)() == pytest.approx(1209)
    finally:
        await runner.cleanup()


def job_of(engine: FakeEngine, engine_url: str) -> ReplayJob:
    call = CallTrace(id=0, parents=(), thread="main", prefill_tokens=12, decode_tokens=4)
    programs = [ProgramTrace(source="x", program_id=f"p{number}", calls=(call,)) for number in range(3)]
    return ReplayJob(
        base_url=engine.base_url,
        model=MODEL_NAME,
        programs=programs,
        # So late in seconds that only steps can bring the programs.
        arrivals_s=[0.0, 1e6, 2e6],
        timeout_s=60.0,
        engine_url=engine_url,
        step_s=5e5,
    )


async def test_programs_of_a_replay_arrive_when_the_engine_has_made_their_steps() -> None:
    """Here it makes as many steps as it has generated tokens, and each program generates four."""
    engine = FakeEngine(FakeBehaviour(output_tokens=4, token_delay_s=0.01))
    await engine.start()

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text=f"vllm:iteration_tokens_total_count {float(engine.steps)}")

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        job = job_of(engine, f"http://127.0.0.1:{runner.addresses[0][1]}")
        results = sorted(await asyncio.to_thread(replay, job), key=lambda result: result.program)
    finally:
        await runner.cleanup()
        await engine.stop()

    assert [result.error for result in results] == [None] * 3
    steps = [(result.submit_step, result.finish_step) for result in results]
    assert all(submit is not None and finish is not None and submit <= finish for submit, finish in steps)
    for (submit, _), arrival in zip(steps, (0.0, 2.0, 4.0), strict=True):
        assert submit is not None
        assert submit >= arrival


async def test_an_engine_that_counts_no_steps_is_named() -> None:
    engine = FakeEngine(FakeBehaviour(output_tokens=4))
    await engine.start()
    runner, url = await served("autellix_calls_total 3.0")
    try:
        with pytest.raises(ReplayError, match=f"{url}/metrics has no vllm:iteration_tokens_total"):
            await asyncio.to_thread(replay, job_of(engine, url))
    finally:
        await runner.cleanup()
        await engine.stop()
