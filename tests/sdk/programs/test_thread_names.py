"""The names of threads, as the backend gets them."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.sdk.propagation import Agent

import autellix
from autellix._programs.registry import programs
from autellix._programs.running import attach
from autellix._programs.thread import ProgramThread
from autellix_wire.ids import MAX_ID_BYTES


def names(agent: Agent) -> dict[str, str | None]:
    return {what: call.get("x-autellix-thread-name") for what, call in agent.backend.by_content().items()}


def run_in(thread: threading.Thread) -> None:
    thread.start()
    thread.join()


def test_threads_and_tasks_have_the_users_names(agent: Agent) -> None:
    """A name that Python has made up is none."""

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(agent.aask("planner's task"), name="planner")
            group.create_task(agent.aask("a task"))

    with autellix.program("team"):
        agent.ask("main")
        run_in(threading.Thread(target=agent.ask, args=("critic's thread",), name="critic"))
        run_in(threading.Thread(target=agent.ask, args=("a thread",)))
        with ThreadPoolExecutor(thread_name_prefix="worker") as pool:
            pool.submit(agent.ask, "a job").result()
        asyncio.run(main())
    assert names(agent) == {
        "main": None,
        "critic's thread": "critic",
        "a thread": None,
        # The name of a worker is not that of its job.
        "a job": None,
        "planner's task": "planner",
        "a task": None,
    }


def test_scopes_have_the_users_names(agent: Agent) -> None:
    with autellix.program("team"), autellix.thread("writer"):
        agent.ask("scope")
        with autellix.session():
            agent.ask("session in it")
        with autellix.thread():
            agent.ask("scope in it")
    assert names(agent) == dict.fromkeys(("scope", "session in it", "scope in it"), "writer")


def test_a_branch_without_a_name_has_its_starters(agent: Agent) -> None:
    """Many libraries make a call in a task of their own."""

    async def research() -> None:
        await asyncio.gather(agent.aask("left"), agent.aask("right"))

    async def main() -> None:
        await asyncio.create_task(research(), name="researcher")

    with autellix.program("team"):
        asyncio.run(main())
    assert names(agent) == dict.fromkeys(("left", "right"), "researcher")


def test_a_thread_has_one_name(agent: Agent) -> None:
    """That of its task at its first call."""

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        for name in ("first", "second"):
            task.set_name(name)
            await agent.aask(name)

    with autellix.program("team"):
        asyncio.run(main())
    assert names(agent) == {"first": "first", "second": "first"}


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("x" * 10_000, "x" * MAX_ID_BYTES),
        ("plan\r\nX-Evil: 1", "plan%0D%0AX-Evil: 1"),
        ("\x1b[31mred\x00", "%1B[31mred%00"),
        ("критик", "%D0%BA%D1%80%D0%B8%D1%82%D0%B8%D0%BA"),
        ("\ud800", "?"),
        ("<b>&", "<b>&"),
        ("  ", None),
        ("Thread-7 (run)", None),
        ("Thread-seven", "Thread-seven"),
        ("starlette.responses.Response.__call__.<locals>.wrap", None),
        # AnyIO names a task after its function.
        ("asyncio.tasks._GatheringFuture.cancel", None),
        ("nobodys.module.function", "nobodys.module.function"),
        ("asyncio 3.14", "asyncio 3.14"),
    ],
)
def test_a_header_can_carry_what_is_sent(agent: Agent, given: str, sent: str | None) -> None:
    with autellix.program("team"):
        run_in(threading.Thread(target=agent.ask, args=("call",), name=given))
    assert names(agent) == {"call": sent}
    assert agent.backend.by_content()["call"]["x-autellix-program-name"] == "team"


class Odd(threading.Thread):
    """A thread whose name is what an actor library or a mock makes of it."""

    made: Any = None

    @property
    def name(self) -> Any:
        if self.made is RuntimeError:
            # A new one: an error holds the frames that it has passed.
            raise RuntimeError
        return self.made

    @name.setter
    def name(self, value: Any) -> None: ...


@pytest.mark.parametrize("made", [None, 7, object(), RuntimeError], ids=type)
def test_an_odd_name_loses_no_call_and_no_identity(agent: Agent, made: Any) -> None:
    thread = Odd(target=agent.ask, args=("call",))
    thread.made = made
    with autellix.program("team"):
        run_in(thread)
    assert names(agent) == {"call": None}
    assert agent.programs() == {"call": "team"}


def test_an_odd_name_loses_no_session(agent: Agent) -> None:
    def work() -> None:
        with autellix.session(id="mine"):
            agent.ask("call")

    thread = Odd(target=work)
    thread.made = RuntimeError
    run_in(thread)
    assert agent.backend.by_content()["call"]["x-autellix-session-id"] == "mine"


def test_a_thread_that_is_gone_has_no_name() -> None:
    carrier = threading.Thread(name="short")
    thread = ProgramThread(programs.implicit, ())
    attach(carrier, thread)
    del carrier
    assert thread.thread_name is None
