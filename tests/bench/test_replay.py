"""The load generator as its own process, with the real client library, against the fake engine."""

from __future__ import annotations

import asyncio

import pytest

from autellix_backend.bench.replay import Job, ReplayError, replay
from autellix_backend.bench.results import CallResult
from autellix_backend.engines.fake import MODEL_NAME, FakeBehaviour, FakeEngine, Fault
from autellix_backend.workload.schema import CallTrace, ProgramTrace


def call(number: int, *parents: int, thread: str = "main") -> CallTrace:
    return CallTrace(id=number, parents=parents, thread=thread, prefill_tokens=12, decode_tokens=2 + number)


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
            job = Job(
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


def test_a_backend_that_refuses_is_named() -> None:
    behaviour = FakeBehaviour(fault=Fault.ERROR, error_status=400, error_message="no such thing")
    with pytest.raises(ReplayError, match="no such thing"):
        play(behaviour, CHAIN)


def test_a_backend_that_is_not_there_is_named() -> None:
    job = Job(base_url="http://127.0.0.1:9", model="m", programs=[CHAIN], arrivals_s=[0.0], timeout_s=60.0)
    with pytest.raises(ReplayError, match="the backend does not answer"):
        replay(job)


def test_a_run_out_of_time_is_an_error() -> None:
    behaviour = FakeBehaviour(fault=Fault.HANG)

    async def main() -> None:
        engine = FakeEngine(behaviour)
        await engine.start()
        try:
            job = Job(base_url=engine.base_url, model="m", programs=[CHAIN], arrivals_s=[0.0], timeout_s=5.0)
            with pytest.raises(ReplayError, match="not finished after 5 s"):
                await asyncio.to_thread(replay, job)
        finally:
            await engine.stop()

    asyncio.run(main())
