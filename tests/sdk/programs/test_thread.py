"""Which program, thread and parents a call gets, wherever the user's program makes it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import threading
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest

import autellix
from autellix._programs.program import ClientProgram
from autellix._programs.running import running_thread
from autellix._programs.thread import ProgramThread

if TYPE_CHECKING:
    from collections.abc import Callable


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


def test_propagated_function_stays_in_its_program(sdk: None) -> None:
    """The user has said that it belongs there."""
    with autellix.program("a"):
        function = autellix.propagate(here)
    assert function()[0] == "a"


async def ahere() -> tuple[str | None, int]:
    await asyncio.sleep(0)
    return here()


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


def test_a_branch_takes_the_tools_of_its_ancestors_once_in_the_order_in_which_they_ran(sdk: None) -> None:
    """Many clients make a call in a task of its own, whose spawner ran the tools."""
    with autellix.program("a"):
        parent = running_thread()
        branch = parent.branch()
        leaf = branch.branch()
        parent.record_tool("first", 1.0)
        branch.record_tool("second", 2.0)
        leaf.record_tool("third", 3.0)

        assert leaf.take_interceptions() == [("first", 1.0), ("second", 2.0), ("third", 3.0)]
        assert leaf.take_interceptions() == parent.take_interceptions() == []


def test_tools_are_taken_past_an_ancestor_that_is_gone(sdk: None) -> None:
    with autellix.program("a"):
        between = running_thread().branch()
        leaf = between.branch()
        del between
        gc.collect()
        running_thread().record_tool("kept", 2.0)

        assert leaf.take_interceptions() == [("kept", 2.0)]


async def test_siblings_have_their_own_small_thread_ids(sdk: None) -> None:
    with autellix.program("a"):
        call("first")
        for _ in range(3):
            ids = await asyncio.gather(*(ahere() for _ in range(10)))
            gc.collect()
            assert len({number for _, number in ids}) == 10
            assert 0 not in {number for _, number in ids}
            assert max(number for _, number in ids) <= 20


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


class Proxy:
    """Stands for something elsewhere: it answers for every attribute with another one."""

    def __getattr__(self, name: str) -> Proxy:
        return Proxy()

    def __call__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("answer", [Proxy, MagicMock])
def test_thread_that_answers_for_every_attribute_follows(sdk: None, answer: Callable[[], object]) -> None:
    """As the threads of actor libraries and of tests do."""

    class Actor(threading.Thread):
        def __getattr__(self, name: str) -> object:
            return answer()

    with autellix.program("a"):
        actor = Actor(target=call, args=("branch",))
        actor.start()
        actor.join()
        assert call("end") == ("branch",)


async def test_callback_that_answers_for_every_attribute_is_called(sdk: None) -> None:
    loop = asyncio.get_running_loop()
    called = asyncio.Event()
    loop.call_soon_threadsafe(Proxy())
    loop.call_later(0, Proxy())
    loop.call_later(0, called.set)
    await called.wait()
    future: concurrent.futures.Future[None] = concurrent.futures.Future()
    future.add_done_callback(Proxy())
    future.set_result(None)
