"""A root run of a framework is a program, and a run inside it a thread; with a framework made up here."""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

import autellix
from autellix._instrument.patches import Patches
from autellix._instrument.root_runs import instrument_root_runs
from autellix._instrument.switch import ROOT_RUNS
from autellix._programs import generators
from autellix._programs.registry import programs

if TYPE_CHECKING:
    from tests.sdk.propagation import Agent as Caller

Seen = list[tuple[str | None, str]]


def here() -> tuple[str | None, str]:
    """The name and the id of the running program."""
    identity = autellix.current()
    return identity.name, identity.program_id


class Stream:
    """A stream as the Microsoft Agent Framework's: pulls inside of context managers, and hooks at its end."""

    def __init__(self, count: int, seen: Seen) -> None:
        self._left = count
        self._seen = seen
        self._contexts: list[Callable[[], AbstractContextManager[None]]] = []
        self._hooks: list[Callable[[], object]] = []

    def with_pull_context_manager(self, factory: Callable[[], AbstractContextManager[None]]) -> Stream:
        self._contexts.append(factory)
        return self

    def with_cleanup_hook(self, hook: Callable[[], object]) -> Stream:
        self._hooks.append(hook)
        return self

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> int:
        if not self._left:
            for hook in self._hooks:
                hook()
            raise StopAsyncIteration
        self._left -= 1
        for factory in self._contexts:
            with factory():
                await asyncio.sleep(0)
                self._seen.append(here())
        return self._left


class Agent:
    """An agent with an entry point of each kind, under the names of other frameworks' entry points."""

    def __init__(self, name: str | None, tool: Callable[[], Any] | None = None) -> None:
        self.name = name
        self.tool = tool
        self.seen: Seen = []

    def _step(self) -> None:
        self.seen.append(here())

    async def run(self, task: str) -> str:
        self._step()
        if self.tool is not None:
            await asyncio.gather(self.tool(), self.tool())
        await asyncio.sleep(0)
        self._step()
        return task

    def generate(self) -> Iterator[int]:
        for number in range(2):
            self._step()
            yield number

    async def stream(self) -> AsyncGenerator[int]:
        for number in range(2):
            self._step()
            yield number
            await asyncio.sleep(0)

    def either(self, *, streams: bool) -> Any:
        return self.generate() if streams else self.run("task")

    def pulled(self) -> Stream:
        return Stream(2, self.seen)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[str | None]:
        self._step()
        yield self.name


class Runner:
    """An entry point whose agent is an argument, and one whose agent is an attribute."""

    def __init__(self, agent: Any = None) -> None:
        self.agent = agent

    async def run_with(self, starting_agent: Agent, task: str) -> str:
        return await starting_agent.tool() if starting_agent.tool else task

    async def run_own(self) -> tuple[str | None, str]:
        return here()


ENTRY_POINTS = (
    "Agent.run Agent.generate Agent.stream Agent.either Agent.pulled Agent.opened "
    "Runner.run_with:starting_agent Runner.run_own"
)


@pytest.fixture
def patches(sdk: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Patches]:
    """The entry points above, in the table and patched."""
    module: Any = ModuleType("framework")
    module.Agent, module.Runner = Agent, Runner
    monkeypatch.setitem(ROOT_RUNS, "framework", ENTRY_POINTS)
    applied = Patches()
    instrument_root_runs(applied, module)
    assert applied.missing == []
    yield applied
    applied.revert()
    gc.collect()
    assert not generators.open_scopes
    assert not programs._open
    assert here()[0] is None


async def test_runs_at_once_are_programs_named_after_their_agents(patches: Patches) -> None:
    agents = [Agent("writer"), Agent("writer"), Agent(None)]
    assert await asyncio.gather(*(agent.run("task") for agent in agents)) == ["task"] * 3
    assert [{name for name, _ in agent.seen} for agent in agents] == [{"writer"}, {"writer"}, {"Agent"}]
    assert len({program_id for agent in agents for _, program_id in agent.seen}) == 3
    assert all(len(set(agent.seen)) == 1 for agent in agents)


async def test_a_run_inside_a_run_is_a_thread_with_its_name(patches: Patches, agent: Caller) -> None:
    numbers = iter("12")

    async def tool() -> None:
        half = Agent("half", partial(agent.aask, f"half {next(numbers)}"))
        await Runner().run_with(half, "task")

    async def run() -> str:
        await agent.aask("plan")
        await asyncio.gather(tool(), tool())
        return await agent.aask("answer")

    await Runner().run_with(Agent("main", run), "task")
    agent.expect(
        {"plan": (), "half 1": ("plan",), "half 2": ("plan",), "answer": ("half 1", "half 2")}, program="main"
    )
    calls = agent.backend.by_content()
    assert {name: call.get("x-autellix-thread-name") for name, call in calls.items()} == {
        "plan": None,
        "half 1": "half",
        "half 2": "half",
        "answer": None,
    }
    assert len({agent.thread_of(name) for name in ("plan", "half 1", "half 2")}) == 3


async def test_a_run_in_a_named_program_stays_in_it(patches: Patches) -> None:
    writer = Agent("writer")
    with autellix.program("mine"):
        await writer.run("task")
        assert here()[0] == "mine"
    assert {name for name, _ in writer.seen} == {"mine"}


def test_a_generator_is_a_program_and_its_consumer_is_not(patches: Patches) -> None:
    for make in (Agent.generate, partial(Agent.either, streams=True)):
        writer = Agent("writer")
        for _ in make(writer):
            assert here()[0] is None
        assert len(set(writer.seen)) == 1
        assert writer.seen[0][0] == "writer"


async def test_an_async_generator_is_a_program_and_its_consumer_is_not(patches: Patches) -> None:
    writer = Agent("writer")
    async for _ in writer.stream():
        assert here()[0] is None
    assert len(set(writer.seen)) == 1
    assert writer.seen[0][0] == "writer"


async def test_a_coroutine_that_a_plain_method_returns_runs_in_the_program(patches: Patches) -> None:
    writer = Agent("writer")
    await writer.either(streams=False)
    assert {name for name, _ in writer.seen} == {"writer"}


async def test_a_stream_is_one_program_while_it_is_pulled(patches: Patches) -> None:
    writer = Agent("writer")
    async for _ in writer.pulled():
        assert here()[0] is None
    assert len(writer.seen) == 2
    assert len(set(writer.seen)) == 1
    assert writer.seen[0][0] == "writer"


async def test_a_stream_that_a_generator_starts_leaves_its_consumer_alone(patches: Patches) -> None:
    outer, inner = Agent("outer"), Agent("inner")

    async def pull(agent: Agent) -> AsyncGenerator[int]:
        async for number in agent.pulled():
            yield number

    async def generate() -> AsyncGenerator[int]:
        with autellix.program("mine"):
            async for number in outer.pulled():
                yield number

    async for _ in generate():
        assert here()[0] is None
        async for _ in pull(inner):
            assert here()[0] is None
    assert {name for name, _ in outer.seen} == {"mine"}
    assert {name for name, _ in inner.seen} == {"inner"}
    assert len(set(inner.seen)) == 2


async def test_abandoned_streams_leave_nothing(patches: Patches) -> None:
    """The fixture looks for what is left open."""
    for _ in range(3):
        next(iter(Agent("writer").generate()))
        Agent("writer").pulled()
        pulled = Agent("writer").pulled()
        await anext(pulled)
        del pulled
        generator = Agent("writer").stream()
        await anext(generator)
        await generator.aclose()
        Agent("writer").run("never awaited").close()


async def test_a_context_manager_is_a_program_for_its_block(patches: Patches) -> None:
    async with Agent("writer").opened() as value:
        inside = here()
    assert value == "writer"
    assert inside[0] == "writer"
    with pytest.raises(KeyError):
        async with Agent("writer").opened():
            raise KeyError("passes")


async def test_names_of_runners_are_those_of_their_agents(patches: Patches) -> None:
    async def look() -> tuple[str | None, str]:
        return here()

    found: Any = await Runner().run_with(Agent("first", look), "task")
    assert found[0] == "first"
    found = await Runner().run_with(task="task", starting_agent=Agent("second", look))
    assert found[0] == "second"
    assert (await Runner(Agent("third")).run_own())[0] == "third"


async def test_steps_without_a_name_are_part_of_the_run(patches: Patches) -> None:
    """As the modules of a DSPy program: threads of theirs would be noise."""
    step = Agent(None)

    async def tool() -> None:
        thread_id = autellix.current().thread_id
        await step.run("task")
        assert autellix.current().thread_id == thread_id

    await Agent("main", tool).run("task")
    assert {name for name, _ in step.seen} == {"main"}


async def test_an_agent_that_cannot_be_named_runs(patches: Patches) -> None:
    class Odd:
        @property
        def name(self) -> str:
            raise RuntimeError("no name yet")

    assert (await Runner(Odd()).run_own())[0] is None
    with pytest.raises(TypeError):
        await Runner().run_with()  # type: ignore[call-arg]


def test_the_kinds_of_functions_and_their_signatures_stay(patches: Patches) -> None:
    assert inspect.iscoroutinefunction(Agent.run)
    assert not inspect.iscoroutinefunction(Agent.either)
    assert list(inspect.signature(Agent.run).parameters) == ["self", "task"]
    patches.revert()
    assert inspect.isasyncgenfunction(Agent.stream)


async def test_a_method_that_is_gone_is_listed_and_the_rest_goes_on(
    sdk: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other:
        async def run(self) -> tuple[str | None, str]:
            return here()

    module: Any = ModuleType("framework")
    module.Other = Other
    monkeypatch.setitem(ROOT_RUNS, "framework", "Other.start Gone.run Other.run")
    applied = Patches()
    instrument_root_runs(applied, module)
    assert applied.missing == ["framework.Other.start", "framework.Gone.run"]
    assert (await Other().run())[0] == "Other"
    applied.revert()
    assert (await Other().run())[0] is None


async def test_a_module_that_has_taken_another_ones_name_is_known_by_its_place(
    sdk: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CrewAI's do so after their import, before a client that is imported later sees them."""

    class Other:
        async def run(self) -> tuple[str | None, str]:
            return here()

    module: Any = ModuleType("framework.another")
    module.Other = Other
    monkeypatch.setitem(sys.modules, "framework", module)
    monkeypatch.setitem(ROOT_RUNS, "framework", "Other.run")
    applied = Patches()
    instrument_root_runs(applied, module)
    assert (await Other().run())[0] == "Other"
    applied.revert()


def test_a_folder_of_the_users_own_is_left_alone(sdk: None) -> None:
    """With the name of a framework's module."""

    class Workflow:
        def run(self) -> tuple[str | None, str]:
            return here()

    module: Any = ModuleType("workflows.workflow")
    module.Workflow = Workflow
    applied = Patches()
    instrument_root_runs(applied, module)
    assert applied.missing == []
    assert Workflow().run()[0] is None


async def test_a_patch_that_another_library_has_wrapped_is_inert_once_the_client_is_off(
    patches: Patches,
) -> None:
    ours = Agent.run
    autellix.uninstrument()
    writer = Agent("writer")
    assert await ours(writer, "task") == "task"
    assert {name for name, _ in writer.seen} == {None}


async def test_runs_of_openai_agents_are_programs(agent: Caller) -> None:
    agents: Any = pytest.importorskip("agents")
    import openai

    agents.set_tracing_disabled(True)
    async with openai.AsyncOpenAI(base_url=agent.backend.url, api_key="key") as client:
        model = agents.OpenAIChatCompletionsModel(model="m", openai_client=client)
        writer = agents.Agent(name="writer", model=model)
        await asyncio.gather(*(agents.Runner.run(writer, f"task {number}") for number in range(3)))
        streamed = agents.Runner.run_streamed(writer, "streamed")
        async for _ in streamed.stream_events():
            pass
    assert len(agent.backend.programs()) == 4
    assert set(agent.programs().values()) == {"writer"}
    assert len(agent.backend.wait_for("DELETE", "/programs/", count=4)) == 4
