"""Which program, thread and parents a call gets, wherever the user's program makes it."""

from __future__ import annotations

import asyncio
import functools
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.sdk.propagation import run_on

import autellix
from autellix._programs.program import ClientProgram
from autellix._programs.running import running_thread
from autellix._programs.thread import ProgramThread


def here() -> tuple[str | None, int]:
    identity = autellix.current()
    return identity.name, identity.thread_id


def call(name: str) -> tuple[str, ...] | None:
    """Make a call as far as scopes are concerned; return its parents."""
    thread = running_thread()
    parents = thread.record_call(name)
    assert thread.thread_id >= 0
    return parents


async def acall(name: str) -> tuple[str, ...] | None:
    await asyncio.sleep(0)
    return call(name)


def run_in_thread(function: Any) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


def test_scopes_nest(sdk: None) -> None:
    with autellix.program("a") as outer:
        with autellix.program("b"):
            assert here() == ("b", 0)
        assert autellix.current().program_id == outer.program_id
    assert autellix.current().is_implicit


def test_thread_follows_its_starter(sdk: None) -> None:
    with autellix.program("a"):
        assert here() == ("a", 0)
        assert run_in_thread(here) == ("a", 1)


def test_thread_leaves_a_program_that_has_ended(sdk: None) -> None:
    gate, results = threading.Event(), []

    def work() -> None:
        gate.wait()
        results.append(here()[0])

    with autellix.program("a"):
        thread = threading.Thread(target=work)
        thread.start()
    gate.set()
    thread.join()
    assert results == [None]


def test_propagated_function_stays_in_its_program(sdk: None) -> None:
    """The user has said that it belongs there."""
    with autellix.program("a"):
        function = autellix.propagate(here)
    assert function()[0] == "a"


def test_timer_follows(sdk: None) -> None:
    results: list[str | None] = []
    with autellix.program("a"):
        timer = threading.Timer(0.001, lambda: results.append(here()[0]))
        timer.start()
        timer.join()
    assert results == ["a"]


def test_pool_worker_takes_each_jobs_program(sdk: None) -> None:
    """Workers are reused: nothing is left of the job before, nor of the one that started them."""
    with ThreadPoolExecutor(1) as pool:
        with autellix.program("a"):
            assert pool.submit(here).result()[0] == "a"
        with autellix.program("b"):
            assert [name for name, _ in pool.map(lambda _: here(), range(2))] == ["b", "b"]
        assert pool.submit(here).result()[0] is None


def test_pool_of_outer_program_keeps_results_and_errors(sdk: None) -> None:
    def fail() -> None:
        raise KeyError("users")

    with autellix.program("a"), ThreadPoolExecutor(1) as pool:
        assert pool.submit(max, 1, 3, key=abs).result() == 3
        with pytest.raises(KeyError, match="users"):
            pool.submit(fail).result()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_tasks_and_executors_follow(sdk: None, loop: str) -> None:
    async def work() -> list[str | None]:
        names: list[str | None] = []
        with autellix.program("a"):
            names.append((await asyncio.create_task(ahere()))[0])
            names.append((await asyncio.to_thread(here))[0])
            names.append((await asyncio.get_running_loop().run_in_executor(None, here))[0])
            async with asyncio.TaskGroup() as group:
                task = group.create_task(ahere())
            names.append(task.result()[0])
        names.append(here()[0])
        return names

    assert run_on(loop, work()) == ["a", "a", "a", "a", None]


async def ahere() -> tuple[str | None, int]:
    await asyncio.sleep(0)
    return here()


async def test_gathered_tasks_keep_programs_apart(sdk: None) -> None:
    """Tasks interleave inside one thread, each with its own program."""

    async def agent(name: str) -> list[str | None]:
        with autellix.program(name):
            return [(await ahere())[0] for _ in range(5)]

    async def main() -> list[list[str | None]]:
        return await asyncio.gather(*(agent(str(number)) for number in range(20)))

    assert await main() == [[str(number)] * 5 for number in range(20)]


async def test_eager_tasks_follow(sdk: None) -> None:
    """A task that runs inside create_task, before it can be linked, is linked at its first look-up."""
    names = []

    class EagerTask(asyncio.Task[Any]):
        """Looks its scope up as the first step of an eager task would, with itself as the current task."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            loop, current = asyncio.get_running_loop(), asyncio.current_task()
            assert current is not None
            asyncio.tasks._leave_task(loop, current)
            asyncio.tasks._enter_task(loop, self)
            names.append(here())
            asyncio.tasks._leave_task(loop, self)
            asyncio.tasks._enter_task(loop, current)

    loop = asyncio.get_running_loop()
    loop.set_task_factory(lambda loop, coro, **kwargs: EagerTask(coro, loop=loop, **kwargs))
    with autellix.program("a"):
        assert here() == ("a", 0)
        names.append(await loop.create_task(ahere()))
    loop.set_task_factory(None)
    assert names == [("a", 1), ("a", 1)]


async def test_siblings_have_their_own_small_thread_ids(sdk: None) -> None:
    with autellix.program("a"):
        call("first")
        for _ in range(3):
            ids = await asyncio.gather(*(ahere() for _ in range(10)))
            gc.collect()
            assert len({number for _, number in ids}) == 10
            assert 0 not in {number for _, number in ids}
            assert max(number for _, number in ids) <= 20


async def test_parents_fork_and_join(sdk: None) -> None:
    """A branch depends on the call before the spawn; the call after the join depends on the branches."""

    async def branch(name: str) -> None:
        assert await acall(name + "1") == ("root",)
        assert await acall(name + "2") == (name + "1",)

    with autellix.program("a"):
        assert call("root") == ()
        await asyncio.gather(branch("x"), branch("y"))
        assert call("joined") == ("x2", "y2")
        assert call("last") == ("joined",)


def test_parents_over_threads_and_jobs(sdk: None) -> None:
    with autellix.program("a"), ThreadPoolExecutor(2) as pool:
        call("root")
        assert run_in_thread(functools.partial(call, "thread")) == ("root",)
        assert pool.submit(call, "job").result() == ("thread",)
        assert call("joined") == ("job",)


def test_running_branch_is_no_parent(sdk: None) -> None:
    gate = threading.Event()

    def work() -> None:
        call("branch")
        gate.wait()

    with autellix.program("a"):
        call("root")
        thread = threading.Thread(target=work)
        thread.start()
        while not running_thread().children:
            pass
        assert call("meanwhile") == ("root",)
        gate.set()
        thread.join()
        assert call("joined") == ("meanwhile", "branch")


async def test_grandchild_is_joined_through_its_finished_parent(sdk: None) -> None:
    async def middle() -> None:
        await asyncio.create_task(acall("deep"))

    with autellix.program("a"):
        call("root")
        await asyncio.create_task(middle())
        assert call("joined") == ("deep",)


def test_nested_program_starts_a_dag_of_its_own(sdk: None) -> None:
    with autellix.program("a"):
        call("root")
        with autellix.program("b"):
            assert call("inner") == ()
        assert call("after") == ("root",)


def test_unlinked_branch_of_a_running_program_has_unknown_parents(sdk: None) -> None:
    """Nobody knows what a thread waited for that started while the client was off."""
    gate, results = threading.Event(), []

    def work() -> None:
        gate.wait()
        results.append(call("branch"))

    autellix.uninstrument()
    thread = threading.Thread(target=work)
    thread.start()
    autellix.instrument()
    call("main")
    gate.set()
    thread.join()
    assert results == [None]


async def test_more_branches_than_can_be_listed_are_flagged(sdk: None) -> None:
    with autellix.program("a"):
        await asyncio.gather(*(acall(str(number)) for number in range(100)))
        parents = call("joined")
        assert parents is not None
        assert len(parents) == 64
        assert running_thread().is_truncated


async def test_chain_of_tasks_keeps_nothing_alive(sdk: None) -> None:
    """A program that goes on by spawning its successor does not grow."""

    async def step(number: int) -> None:
        call(str(number))
        if number:
            tasks.append(asyncio.get_running_loop().create_task(step(number - 1)))

    tasks: list[asyncio.Task[None]] = []

    with autellix.program("a"):
        tasks.append(asyncio.get_running_loop().create_task(step(500)))
        while tasks:
            await tasks.pop()
        gc.collect()
        threads = [thing for thing in gc.get_objects() if type(thing) is ProgramThread]
        assert len(threads) < 100


def test_branch_that_ran_only_a_tool_adds_no_ancestor(sdk: None) -> None:
    with autellix.program("a"):
        call("root")
        branch = running_thread().branch()
        call("next")
        branch.record_tool("search", 0.5)
        branch.is_closed = True
        assert call("end") == ("next",)
        assert running_thread().frontier == ("end",)


def test_tool_of_a_branch_with_unknown_parents_makes_no_root(sdk: None) -> None:
    origin = ProgramThread(ClientProgram("a", None), None)
    branch = origin.branch()
    branch.record_tool("search", 0.5)
    branch.is_closed = True
    assert origin.record_call("call") is None


def test_thread_class_of_the_user_may_have_any_attributes(sdk: None) -> None:
    class Worker(threading.Thread):
        done = threading.Event()
        dead = "no"

    with autellix.program("a"):
        worker = Worker(target=call, args=("branch",))
        worker.start()
        worker.join()
        assert call("end") == ("branch",)
