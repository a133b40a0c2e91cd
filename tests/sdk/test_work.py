"""Work stays in its program: tasks and jobs that are still under way when their scope is left."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest
from tests.sdk.propagation import Agent, run_on
from tests.waiting import PATIENCE_S, wait_until

import autellix
from autellix._programs.program import ClientProgram
from autellix._programs.registry import programs
from autellix._programs.thread import ProgramThread
from autellix._sessions.keeper import keeper

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator


def ends(agent: Agent) -> list[str]:
    """Return the ids of the programs that have been ended so far."""
    paths = [path for method, path, _ in agent.backend.control if method == "DELETE"]
    return [path.rpartition("/")[2] for path in paths if "/programs/" in path]


def is_open(program_id: str) -> bool:
    return program_id in programs._open


class Gated:
    """Jobs that call when they are let to."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.gate = threading.Event()

    def call(self, name: str = "late") -> str:
        assert self.gate.wait(PATIENCE_S)
        return self.agent.ask(name)


@pytest.fixture
def gated(agent: Agent) -> Gated:
    return Gated(agent)


def expect_late(agent: Agent, program_id: str) -> None:
    """The late call follows the first one, and the program has ended once, after it."""
    agent.expect({"root": (), "late": ("root",)})
    agent.backend.wait_for("DELETE", f"/programs/{program_id}")
    assert ends(agent) == [program_id]
    wait_until(lambda: not is_open(program_id))


# Jobs


def submit(pool: ThreadPoolExecutor, job: Callable[[], str]) -> Callable[[], object]:
    return pool.submit(job).result


def callback(pool: ThreadPoolExecutor, job: Callable[[], str]) -> Callable[[], object]:
    """Add a callback to a future that is done later."""
    future: Future[None] = Future()
    future.add_done_callback(lambda _: job())
    return lambda: future.set_result(None)


@pytest.mark.parametrize("start", [submit, callback])
def test_a_job_that_goes_on_after_its_scope(
    agent: Agent, gated: Gated, start: Callable[..., Callable[[], object]]
) -> None:
    with ThreadPoolExecutor(1) as pool:
        with autellix.program("agent") as program:
            agent.ask("root")
            wait = start(pool, gated.call)
        assert is_open(program.program_id)
        assert ends(agent) == []
        gated.gate.set()
        wait()
    expect_late(agent, program.program_id)


@pytest.mark.parametrize("method", ["apply_async", "map_async", "imap"])
def test_a_job_of_a_thread_pool_that_goes_on_after_its_scope(agent: Agent, gated: Gated, method: str) -> None:
    with ThreadPool(1) as pool:
        with autellix.program("agent") as program:
            agent.ask("root")
            found: Any = getattr(pool, method)(gated.call, ["late"] if method != "apply_async" else ("late",))
        assert ends(agent) == []
        gated.gate.set()
        list(found) if method == "imap" else found.get(PATIENCE_S)
    del found
    gc.collect()
    expect_late(agent, program.program_id)


def test_the_last_of_several_jobs_ends_their_program(agent: Agent, gated: Gated) -> None:
    last = Gated(agent)
    with ThreadPoolExecutor(2) as pool:
        with autellix.program("agent") as program:
            jobs = pool.submit(gated.call, "first"), pool.submit(last.call, "last")
        gated.gate.set()
        jobs[0].result()
        assert ends(agent) == []
        last.gate.set()
        jobs[1].result()
    agent.expect({"first": (), "last": ()})
    agent.backend.wait_for("DELETE", f"/programs/{program.program_id}")


def test_a_cancelled_job_ends_its_program(agent: Agent, gated: Gated) -> None:
    with ThreadPoolExecutor(1) as pool:
        blocker = pool.submit(gated.call, "other's")
        with autellix.program("agent") as program:
            agent.ask("root")
            job = pool.submit(agent.ask, "never")
        assert job.cancel()
        assert is_open(program.program_id)
        gated.gate.set()
        blocker.result()
    agent.backend.wait_for("DELETE", f"/programs/{program.program_id}")
    assert agent.programs() == {"root": "agent", "other's": None}


def test_a_job_that_fails_ends_its_program(agent: Agent, gated: Gated) -> None:
    def fail() -> None:
        gated.call()
        raise KeyError("mine")

    with ThreadPoolExecutor(1) as pool:
        with autellix.program("agent") as program:
            agent.ask("root")
            job = pool.submit(fail)
        gated.gate.set()
        with pytest.raises(KeyError, match="mine"):
            job.result()
    expect_late(agent, program.program_id)


# Tasks


async def test_a_task_that_goes_on_after_its_scope(agent: Agent) -> None:
    gate = asyncio.Event()

    async def later() -> None:
        await gate.wait()
        # A branch of a task is work of the same program.
        await asyncio.gather(agent.aask("late"))

    async with autellix.program("agent") as program:
        await agent.aask("root")
        task = asyncio.create_task(later())
    assert is_open(program.program_id)
    gate.set()
    await task
    assert not is_open(program.program_id)
    expect_late(agent, program.program_id)


async def test_a_task_that_starts_another_and_ends(agent: Agent) -> None:
    """The program goes from one to the next."""
    tasks: list[asyncio.Task[str]] = []

    async def start() -> None:
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(agent.aask("late")))

    async with autellix.program("agent") as program:
        await agent.aask("root")
        first = asyncio.create_task(start())
    await first
    assert is_open(program.program_id)
    await tasks[0]
    expect_late(agent, program.program_id)


async def test_a_decorated_function_that_returns_a_task(agent: Agent) -> None:
    @autellix.program("agent")
    def start() -> Awaitable[str]:
        agent.ask("root")
        return asyncio.ensure_future(agent.aask("late"))

    @autellix.program("agent")
    def submit() -> Awaitable[str]:
        return asyncio.get_running_loop().run_in_executor(None, agent.ask, "in a thread")

    await start()
    assert agent.backend.dag()["late"] == ("root",)
    await submit()
    assert set(agent.programs().values()) == {"agent"}
    await asyncio.to_thread(agent.backend.wait_for, "DELETE", "/programs/", 2)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_scope_that_another_thread_leaves(agent: Agent, gated: Gated, loop: str) -> None:
    """A task on the loop of another thread, from `run_coroutine_threadsafe`."""

    async def later() -> str:
        await asyncio.to_thread(gated.gate.wait, PATIENCE_S)
        return await agent.aask("late")

    async def main() -> None:
        running = asyncio.get_running_loop()

        def work() -> None:
            with autellix.program("agent") as program:
                agent.ask("root")
                future = asyncio.run_coroutine_threadsafe(later(), running)
            assert ends(agent) == []
            gated.gate.set()
            future.result(PATIENCE_S)
            ids.append(program.program_id)

        ids: list[str] = []
        await asyncio.get_running_loop().run_in_executor(None, work)
        await asyncio.to_thread(expect_late, agent, ids[0])

    run_on(loop, main())


def test_a_task_that_its_loop_drops_ends_its_program(agent: Agent) -> None:
    """Nobody cancels it: the loop is closed, and the task is collected."""
    loop = asyncio.new_event_loop()

    async def main() -> str:
        async with autellix.program("agent") as program:
            await agent.aask("root")
            tasks.append(asyncio.create_task(asyncio.sleep(PATIENCE_S)))
        return program.program_id

    tasks: list[asyncio.Task[None]] = []
    program_id = loop.run_until_complete(main())
    assert is_open(program_id)
    loop.close()
    tasks[0].set_name("dropped")
    # It would report itself.
    vars_of: Any = tasks.pop()
    vars_of._log_destroy_pending = False
    del vars_of
    gc.collect()
    wait_until(lambda: not is_open(program_id))
    agent.backend.wait_for("DELETE", f"/programs/{program_id}")


async def test_a_cancelled_task_ends_its_program(agent: Agent) -> None:
    async with autellix.program("agent") as program:
        agent.ask("root")
        task = asyncio.create_task(asyncio.Event().wait())
        # It begins: one that never did is a coroutine that nobody awaited.
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not is_open(program.program_id)


async def test_workers_of_a_queue_inside_a_program(agent: Agent) -> None:
    jobs: asyncio.Queue[str] = asyncio.Queue()

    async def serve() -> None:
        while True:
            await agent.aask(await jobs.get())
            jobs.task_done()

    async with autellix.program("agent") as program:
        workers = [asyncio.create_task(serve()) for _ in range(2)]
        for name in "ab":
            jobs.put_nowait(name)
        await jobs.join()
        for worker in workers:
            worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    assert not is_open(program.program_id)
    assert agent.programs() == {"a": "agent", "b": "agent"}


async def test_an_anyio_job_that_is_abandoned(agent: Agent, gated: Gated) -> None:
    started, done, scope = threading.Event(), threading.Event(), anyio.CancelScope()

    def work() -> None:
        started.set()
        gated.call()
        done.set()

    async def cancel() -> None:
        await asyncio.to_thread(started.wait, PATIENCE_S)
        scope.cancel()

    async with autellix.program("agent") as program:
        agent.ask("root")
        canceller = asyncio.create_task(cancel())
        with scope:
            await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
        await canceller
    assert is_open(program.program_id)
    gated.gate.set()
    await asyncio.to_thread(done.wait, PATIENCE_S)
    await asyncio.to_thread(expect_late, agent, program.program_id)


# What does not hold a program


async def test_a_timer_does_not_hold_its_program(agent: Agent) -> None:
    """Most are a library's, for its connections; one that fires while the program is open is in it."""
    fired: asyncio.Queue[str | None] = asyncio.Queue()

    def fire() -> None:
        fired.put_nowait(autellix.current().name)

    async with autellix.program("agent") as program:
        asyncio.get_running_loop().call_later(0.001, fire)
        assert await fired.get() == "agent"
        asyncio.get_running_loop().call_later(0.001, fire)
    assert not is_open(program.program_id)
    assert await fired.get() == autellix.current().name


def test_a_thread_stays_while_its_program_is_open(agent: Agent, gated: Gated) -> None:
    """A thread is a worker, which leaves with the last of the program's work."""
    steps = [Gated(agent), Gated(agent)]
    worker = threading.Thread(target=lambda: [step.call(f"worker {n}") for n, step in enumerate(steps)])
    with ThreadPoolExecutor(1) as pool:
        with autellix.program("agent") as program:
            worker.start()
            job = pool.submit(gated.call, "job")
        steps[0].gate.set()
        wait_until(lambda: "worker 0" in agent.programs())
        gated.gate.set()
        job.result()
        wait_until(lambda: not is_open(program.program_id))
        steps[1].gate.set()
        worker.join()
    assert agent.programs() == {"worker 0": "agent", "job": "agent", "worker 1": None}


# Sessions, ids and turns


def test_work_stays_in_the_session_around_its_program(agent: Agent, gated: Gated) -> None:
    with ThreadPoolExecutor(1) as pool:
        with autellix.session(id="mine"), autellix.program("agent"):
            agent.ask("root")
            job = pool.submit(gated.call)
        assert [entry for entry in agent.backend.control if entry[0] == "DELETE"] == []
        gated.gate.set()
        job.result()
    agent.backend.wait_for("DELETE", "/sessions/mine")
    assert {call["x-autellix-session-id"] for call in agent.backend.calls} == {"mine"}
    assert "mine" not in keeper._named


def test_work_and_a_further_scope_with_its_id_are_one_program(agent: Agent, gated: Gated) -> None:
    with ThreadPoolExecutor(1) as pool:
        with autellix.program("agent", id="chosen"):
            agent.ask("root")
            job = pool.submit(gated.call)
        with autellix.program("agent", id="chosen"):
            agent.ask("second")
            gated.gate.set()
            job.result()
            assert ends(agent) == []
            agent.ask("third")
    agent.backend.wait_for("DELETE", "/programs/chosen")
    assert ends(agent) == ["chosen"]
    assert set(agent.programs().values()) == {"agent"}


def test_work_of_a_turn(agent: Agent, gated: Gated) -> None:
    with ThreadPoolExecutor(1) as pool:
        with autellix.program("agent", id="worked turns", continues=True):
            agent.ask("first")
            job = pool.submit(gated.call)
        gated.gate.set()
        job.result()
    with autellix.program("agent", id="worked turns", continues=True):
        agent.ask("second")
    agent.expect({"first": (), "late": ("first",), "second": ("first",)})
    assert ends(agent) == []
    with autellix.program(id="worked turns"):
        pass
    agent.backend.wait_for("DELETE", "/programs/worked")


# Nothing stays


def live(kind: type) -> int:
    return sum(type(thing) is kind for thing in gc.get_objects())


@pytest.fixture
def balance(sdk: None) -> Iterator[None]:
    """Nothing that a test makes is left after it."""
    assert autellix.current().is_implicit
    gc.collect()
    before = live(ClientProgram), live(ProgramThread), len(programs._open), len(keeper._named)
    yield
    assert autellix.current().is_implicit

    def left() -> tuple[int, ...]:
        gc.collect()
        return live(ClientProgram), live(ProgramThread), len(programs._open), len(keeper._named)

    # The workers of a pool end a moment later.
    with contextlib.suppress(AssertionError):
        wait_until(lambda: all(now <= then + 1 for now, then in zip(left(), before, strict=True)))
    assert all(now <= then + 1 for now, then in zip(left(), before, strict=True)), (before, left())


def test_jobs_that_outlive_their_scopes_leave_nothing(balance: None) -> None:
    with ThreadPoolExecutor(4) as pool:
        for number in range(500):
            with autellix.program("agent"), autellix.session(id=f"session-{number % 7}"):
                pool.submit(autellix.current)


def test_tasks_that_outlive_their_scopes_leave_nothing(balance: None) -> None:
    async def later() -> None:
        await asyncio.sleep(0)
        autellix.current()

    async def main() -> None:
        tasks = []
        for _ in range(500):
            with autellix.program("agent"):
                tasks.append(asyncio.create_task(later()))
        await asyncio.gather(*tasks)

    asyncio.run(main())


def test_abandoned_streams_leave_nothing(balance: None) -> None:
    """Each has a scope of its own and a task that goes on without it."""

    async def stream() -> Any:
        with autellix.program("stream"):
            task = asyncio.create_task(asyncio.sleep(0))
            yield 1
            await task

    async def main() -> None:
        for _ in range(200):
            async for _ in stream():
                break
        gc.collect()
        await asyncio.sleep(0.01)

    asyncio.run(main())


def test_a_long_program_notes_no_more_tasks_than_there_are_at_once(sdk: None) -> None:
    """They are noted by their addresses, which come again."""

    async def main() -> None:
        with autellix.program("agent") as program:
            for _ in range(200):
                await asyncio.gather(*(asyncio.sleep(0) for _ in range(50)))
            tasks = programs._open[program.program_id].scopes.tasks
            assert tasks is not None
            assert len(tasks) < 1000

    asyncio.run(main())
