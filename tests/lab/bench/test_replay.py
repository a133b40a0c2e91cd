"""The load generator as its own process, with the real client library, against the fake engine."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from tests.fakes.engine import MODEL_NAME, FakeBehaviour, FakeEngine, Fault

from autellix_lab.bench.client import chains_of
from autellix_lab.bench.replay import ReplayError, ReplayJob, replay
from autellix_lab.bench.results import CallResult
from autellix_lab.workload.trace import CallTrace, ProgramTrace


def call(number: int, *parents: int, thread: str = "main", gap_s: float = 0.0) -> CallTrace:
    return CallTrace(
        id=number,
        parents=parents,
        thread=thread,
        prefill_tokens=12,
        decode_tokens=2 + number,
        gap_before_s=gap_s,
    )


CHAIN = ProgramTrace(source="chain", program_id="chain", calls=(call(0), call(1, 0)))
FORK = ProgramTrace(
    source="fork",
    program_id="fork",
    calls=(call(0), call(1, 0, thread="a"), call(2, 0, thread="b"), call(3, 1, 2)),
)


def play(behaviour: FakeBehaviour, *programs: ProgramTrace) -> tuple[list[CallResult], FakeEngine]:
    async def main() -> tuple[list[CallResult], FakeEngine]:
        engine = FakeEngine(behaviour)
        await engine.start()
        try:
            job = ReplayJob(
                base_url=engine.base_url,
                model=MODEL_NAME,
                programs=programs,
                arrivals_s=[0.05 * index for index in range(len(programs))],
                timeout_s=60.0,
            )
            return await asyncio.to_thread(replay, job), engine
        finally:
            await engine.stop()

    return asyncio.run(main())


def test_calls_follow_the_graph_and_parallel_ones_overlap() -> None:
    behaviour = FakeBehaviour(output_tokens=100, token_delay_s=0.05, extra_fields={"autellix": {"level": 2}})
    results, engine = play(behaviour, CHAIN, FORK)
    found = {(result.program, result.call): result for result in results}
    assert len(found) == len(results) == 6
    assert all(result.error is None and result.receipt == {"level": 2} for result in results)
    assert [found["fork", number].output_tokens for number in range(4)] == [2, 3, 4, 5]
    left, right, join = (found["fork", number] for number in (1, 2, 3))
    assert left.submit_s < right.finish_s
    assert right.submit_s < left.finish_s
    assert join.submit_s >= max(left.finish_s, right.finish_s)
    assert found["chain", 1].submit_s >= found["chain", 0].finish_s
    bodies = [request.json for request in engine.requests if request.path.endswith("completions")]
    assert all(body["max_tokens"] == body["min_tokens"] and body["ignore_eos"] for body in bodies)


def test_chains_are_dependent_calls_of_one_thread() -> None:
    program = ProgramTrace(
        source="x",
        program_id="x",
        calls=(call(0), call(1, 0), call(2, 0), call(3, 2), call(4, 1, thread="a"), call(5, 4, 3)),
    )
    assert [[item.id for item in chain] for chain in chains_of(program)] == [[0, 1], [2, 3, 5], [4]]


def test_calls_of_one_thread_overlap_where_the_graph_says_so_and_gaps_count_from_the_last_parent() -> None:
    program = ProgramTrace(
        source="x",
        program_id="x",
        calls=(call(0), call(1, 0, gap_s=0.3), call(2, 0), call(3, 1, 2, gap_s=0.2), call(4, gap_s=0.1)),
    )
    results, _ = play(FakeBehaviour(output_tokens=100, token_delay_s=0.02), program)
    found = {result.call: result for result in results}
    assert found[1].submit_s >= found[0].finish_s + 0.3
    assert found[2].submit_s < found[0].finish_s + 0.3
    assert found[3].submit_s >= max(found[1].finish_s, found[2].finish_s) + 0.2
    # A second root waits for nobody: its gap counts from the program's arrival.
    assert 0.1 <= found[4].submit_s < found[1].submit_s


def test_a_backend_without_vllms_fields_is_asked_without_them() -> None:
    async def main() -> tuple[list[CallResult], list[dict[str, object]]]:
        bodies: list[dict[str, object]] = []

        async def answer(request: web.Request) -> web.Response:
            body = await request.json()
            bodies.append(body)
            if "ignore_eos" in body:
                return web.json_response({"error": {"message": "unknown field"}}, status=400)
            details = {"cached_tokens": 3}
            usage = {
                "prompt_tokens": 12,
                "completion_tokens": 2,
                "total_tokens": 14,
                "prompt_tokens_details": details,
            }
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "a"}}
            whole = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "usage": usage}
            return web.json_response({**whole, "choices": [choice]})

        app = web.Application()
        app.router.add_post("/v1/chat/completions", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        job = ReplayJob(
            base_url=url, model="m", programs=[CHAIN], arrivals_s=[0.0], timeout_s=60.0, api_key=None
        )
        try:
            return await asyncio.to_thread(replay, job), bodies
        finally:
            await runner.cleanup()

    results, bodies = asyncio.run(main())
    assert [(result.error, result.cached_tokens, result.receipt) for result in results] == [
        (None, 3, None)
    ] * 2
    assert ["ignore_eos" in body for body in bodies] == [True, False, False, False, False]


def test_a_backend_that_refuses_is_named() -> None:
    behaviour = FakeBehaviour(fault=Fault.ERROR, error_status=400, error_message="no such thing")
    with pytest.raises(ReplayError, match="no such thing"):
        play(behaviour, CHAIN)


def test_a_backend_that_is_not_there_is_named() -> None:
    job = ReplayJob(
        base_url="http://127.0.0.1:9", model="m", programs=[CHAIN], arrivals_s=[0.0], timeout_s=60.0
    )
    with pytest.raises(ReplayError, match="the backend does not answer"):
        replay(job)


async def test_a_run_out_of_time_is_an_error() -> None:
    behaviour = FakeBehaviour(fault=Fault.HANG)

    engine = FakeEngine(behaviour)
    await engine.start()
    try:
        job = ReplayJob(
            base_url=engine.base_url, model="m", programs=[CHAIN], arrivals_s=[0.0], timeout_s=0.5
        )
        with pytest.raises(ReplayError, match=r"not finished after 0\.5 s"):
            await asyncio.to_thread(replay, job)
    finally:
        await engine.stop()


def test_another_client_may_play_the_job() -> None:
    job = ReplayJob(base_url="http://127.0.0.1:9", model="m", programs=[CHAIN], arrivals_s=[0.0], salt="x")
    result = "dict(program='chain', call=0, thread=job['salt'], submit_s=0.0, finish_s=1.0)"
    code = f"import json, sys; job = json.load(sys.stdin); print(json.dumps({result}))"
    found = replay(job, client_code=code)
    assert [(item.call, item.thread, item.error) for item in found] == [
        (0, "x", None),
        (1, "main", "no result"),
    ]
