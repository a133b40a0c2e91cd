"""Workers belong to no program: what is started inside `detached()`, or with a context of its own."""

from __future__ import annotations

import asyncio
import contextvars  # noqa: TID251 - tasks may be made with a context, whatever we use ourselves
import queue
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from tests.sdk.propagation import Agent, run_on
from tests.waiting import PATIENCE_S

import autellix

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

VARIABLE = contextvars.ContextVar("VARIABLE", default=0)


def name_here() -> str | None:
    return autellix.current().name


def test_what_is_inside_belongs_to_no_program_and_no_session(agent: Agent) -> None:
    with autellix.session(id="mine"), autellix.program("agent"):
        agent.ask("root")
        with autellix.detached() as identity:
            agent.ask("inside")
            thread = threading.Thread(target=agent.ask, args=("in a thread",))
            thread.start()
            thread.join()
        agent.ask("end")
    assert identity.is_implicit
    assert agent.programs() == {"root": "agent", "inside": None, "in a thread": None, "end": "agent"}
    assert agent.backend.dag()["end"] == ("root",)
    sessions = {name: call["x-autellix-session-id"] for name, call in agent.backend.by_content().items()}
    assert sessions["root"] == sessions["end"] == "mine"
    assert sessions["inside"] == sessions["in a thread"] == autellix.current().session_id


def test_a_program_inside_is_one_of_its_own(agent: Agent) -> None:
    with autellix.program("outer"), autellix.detached(), autellix.program("inner"):
        agent.ask("call")
    assert agent.programs() == {"call": "inner"}


async def test_every_kind_of_function_is_decorated(sdk: None) -> None:
    @autellix.detached()
    def plain() -> str | None:
        return name_here()

    @autellix.detached()
    async def coroutine() -> str | None:
        await asyncio.sleep(0)
        return name_here()

    @autellix.detached()
    def generator() -> Iterator[str | None]:
        yield name_here()

    @autellix.detached()
    async def async_generator() -> AsyncIterator[str | None]:
        yield name_here()

    with autellix.program("agent"):
        found = [plain(), await coroutine(), *generator(), *[name async for name in async_generator()]]
        assert name_here() == "agent"
    assert found == [name_here()] * 4


def test_a_worker_that_the_first_program_starts_serves_another(agent: Agent) -> None:
    """Both are open: the worker's calls are in neither of them."""
    jobs: queue.Queue[tuple[str, threading.Event] | None] = queue.Queue()
    both = threading.Barrier(2)
    workers: list[threading.Thread] = []

    def serve() -> None:
        while (job := jobs.get()) is not None:
            agent.ask(job[0])
            job[1].set()

    def run(name: str) -> None:
        with autellix.program(name):
            both.wait(PATIENCE_S)
            if name == "first":
                with autellix.detached():
                    workers.append(threading.Thread(target=serve))
                    workers[0].start()
            done = threading.Event()
            jobs.put((f"{name}'s", done))
            assert done.wait(PATIENCE_S)
            both.wait(PATIENCE_S)

    threads = [threading.Thread(target=run, args=(name,)) for name in ("first", "second")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    jobs.put(None)
    workers[0].join()
    assert agent.programs() == {"first's": None, "second's": None}


async def task_with(context: contextvars.Context, **more: Any) -> str | None:
    async def name() -> str | None:
        return name_here()

    # The type of the event loop's method lacks what Python 3.14 has.
    task: Any = asyncio.get_running_loop().create_task(name(), context=context, **more)
    return await task  # type: ignore[no-any-return]


def has_changed(context: contextvars.Context) -> contextvars.Context:
    context.run(VARIABLE.set, 2)
    return context


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (contextvars.Context, None),
        (contextvars.copy_context, "agent"),
        (lambda: has_changed(contextvars.copy_context()), "agent"),
        (lambda: has_changed(contextvars.Context()), None),
    ],
    ids=["new", "copy", "copy that was changed", "new with a variable"],
)
def test_a_task_with_a_context_of_its_own_is_detached(
    sdk: None, loop: str, make: Callable[[], contextvars.Context], expected: str | None
) -> None:
    other: contextvars.ContextVar[int] = contextvars.ContextVar("other")
    outside = name_here()

    async def main() -> None:
        VARIABLE.set(1)
        other.set(1)
        with autellix.program("agent"):
            assert await task_with(make()) == (expected or outside)

    run_on(loop, main())


@pytest.mark.skipif(sys.version_info < (3, 12), reason="from Python 3.12")
async def test_an_eager_task_with_a_context_of_its_own_is_detached(sdk: None) -> None:
    loop = asyncio.get_running_loop()
    loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009 - from Python 3.12
    VARIABLE.set(1)
    outside = name_here()
    try:
        with autellix.program("agent"):
            assert await task_with(contextvars.Context()) == outside
            assert await task_with(contextvars.copy_context()) == "agent"
    finally:
        loop.set_task_factory(None)


async def test_where_no_variable_is_set_a_new_context_is_like_a_copy(sdk: None) -> None:
    async def main() -> str | None:
        with autellix.program("agent"):
            return await task_with(contextvars.Context())

    assert await asyncio.to_thread(lambda: contextvars.Context().run(asyncio.run, main())) == "agent"


def test_a_main_task_follows_whatever_its_context(sdk: None) -> None:
    """The runner has made its context before the scope was entered."""

    async def main() -> str | None:
        return name_here()

    with asyncio.Runner() as runner:
        runner.get_loop()
        VARIABLE.set(1)
        with autellix.program("agent"):
            assert runner.run(main()) == "agent"
            assert runner.run(main(), context=contextvars.Context()) == "agent"
