"""The tasks of agent clients that send no ids: one program each, and never one of two tasks."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from tests.fakes.engine import CHAT_PATH, RESPONSES_PATH, FakeBehaviour, FakeEngine
from tests.gateway.agents import AGENTS, Agent, Task, fork
from tests.redis_server import RedisServer
from tests.serving import listening

from autellix_backend.assembly import create_app
from autellix_backend.settings import BalancerSettings, Settings, StoreSettings

CALLS = 3
TASKS = 20


def unique() -> str:
    """Return an id as vLLM makes one, twice as long: one of these in two thousand has no letter."""
    return f"chatcmpl-tool-{secrets.token_hex(16)}"


def calling(make_id: Callable[[], str] = unique) -> FakeBehaviour:
    return FakeBehaviour(make_tool_call_id=make_id)


async def post(rig: Any, path: str, body: dict[str, Any], key: str | None = None) -> tuple[str, str, bytes]:
    """Make a call; return its program, what named that, and the answer."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with rig.client.post(rig.url + path, json=body, headers=headers) as response:
        answer = await response.read()
        assert response.status == 200, answer
        named = response.headers
        return named["X-Autellix-Program-ID"], named["X-Autellix-Identity-Source"], answer


async def step(rig: Any, task: Task, key: str | None = None) -> str:
    program, _, answer = await post(rig, task.agent.path, task.body, key)
    task.take(answer)
    return program


async def run(rig: Any, agent: Agent, key: str | None = None) -> list[str]:
    """Run a task; return the program of each of its calls."""
    task = Task(agent)
    return [await step(rig, task, key) for _ in range(CALLS)]


@pytest.mark.parametrize("agent", AGENTS.values(), ids=AGENTS.keys())
async def test_a_task_is_one_program_from_its_first_call_on(serve: Any, agent: Agent) -> None:
    async with serve(calling()) as rig:
        programs = await run(rig, agent)
        assert len(set(programs)) == 1
        view = await rig.store.program(programs[0])
        assert view.finished_calls == CALLS


@pytest.mark.parametrize("agent", AGENTS.values(), ids=AGENTS.keys())
async def test_between_calls_the_tool_that_the_answer_called_is_shown(serve: Any, agent: Agent) -> None:
    """In each dialect, streamed or not."""
    async with serve(calling()) as rig:
        program = await step(rig, Task(agent))
        await rig.settled()
        _, shown = await rig.get(f"/autellix/v1/programs/{program}")
        _, why = await rig.get(f"/autellix/v1/programs/{program}/why")

    assert (shown["state"], shown["tools"]) == ("between_calls", ["read"])
    assert shown["state_text"] == why["state_text"] == "between calls (tool read)"
    assert "Its last answer called read." in why["text"]


@pytest.mark.parametrize("agent", AGENTS.values(), ids=AGENTS.keys())
async def test_tasks_with_the_same_prompts_at_the_same_time_are_apart(serve: Any, agent: Agent) -> None:
    async with serve(calling()) as rig:
        found = await asyncio.gather(*(run(rig, agent) for _ in range(TASKS)))
        assert [len(set(programs)) for programs in found] == [1] * TASKS
        assert len({programs[0] for programs in found}) == TASKS


async def test_a_fork_with_fewer_tools_is_its_parents_program(serve: Any) -> None:
    async with serve(calling()) as rig:
        parent = Task(AGENTS["Qwen Code"])
        program = await step(rig, parent)
        forked = Task(parent.agent)
        forked.body = fork(parent.body)
        assert [await step(rig, forked), await step(rig, forked), await step(rig, parent)] == [program] * 3


@pytest.mark.parametrize("agent", AGENTS.values(), ids=AGENTS.keys())
async def test_ids_that_an_engine_repeats_join_no_tasks(serve: Any, agent: Agent) -> None:
    async with serve(calling(lambda: "functions.read:0")) as rig:
        found = await asyncio.gather(*(run(rig, agent) for _ in range(3)))
        assert not set.intersection(*map(set, found))


async def test_an_id_of_two_programs_belongs_to_neither(serve: Any) -> None:
    async with serve(calling(lambda: "call_1234abcd")) as rig:
        agent = AGENTS["aider with tools"]
        one, other = Task(agent), Task(agent)
        programs = [await step(rig, one), await step(rig, other)]
        programs += [await step(rig, one), await step(rig, other)]
        assert len(set(programs)) == 4


async def test_the_name_that_a_client_gives_counts_more_than_the_ids_it_carries(serve: Any) -> None:
    async with serve(calling()) as rig:
        task = Task(AGENTS["mini-swe-agent"])
        await step(rig, task)
        task.body["session_id"] = "mine"
        assert await step(rig, task) == "mine"


async def test_an_answer_without_tool_calls_ends_an_unnamed_call(serve: Any) -> None:
    async with serve() as rig:
        task = Task(AGENTS["mini-swe-agent"])
        program, source, _ = await post(rig, task.agent.path, task.body)
        assert source == "request"
        await rig.settled()
        assert await rig.store.program(program) is None
        # The engine is told of the end only where it was not in question.
        assert "autellix_last" not in rig.engine.calls[-1].xargs
        await rig.chat()
        assert rig.engine.calls[-1].xargs["autellix_last"] == 1


@pytest.mark.parametrize("choice", [{"type": "function", "function": {"name": "read"}}, "auto", None])
async def test_a_tool_that_must_be_called_is_a_form_and_ends_an_unnamed_call(serve: Any, choice: Any) -> None:
    async with serve(calling()) as rig:
        task = Task(AGENTS["mini-swe-agent"])
        task.body["tool_choice"] = choice
        program, _, answer = await post(rig, task.agent.path, task.body)
        await rig.settled()
        assert (await rig.store.program(program) is None) is isinstance(choice, dict)
        # One that goes on all the same is known.
        task.take(answer)
        assert await step(rig, task) == program


async def test_tenants_share_no_answers_and_sending_ids_keeps_nothing(serve: Any, tenants_file: Any) -> None:
    async with serve(calling(), tenants_file=str(tenants_file)) as rig:
        for agent in AGENTS.values():
            victim = Task(agent)
            program = await step(rig, victim, "good")
            kept = len(rig.store._answers)
            thief = Task(agent)
            thief.body = victim.body
            stolen, source, _ = await post(rig, agent.path, {**thief.body, "tools": []}, "bad")
            assert stolen != program
            assert source in ("request", "content-chain")
            # A response has an id of its own, which its own answer brought.
            assert len(rig.store._answers) - kept <= 1
            assert await step(rig, victim, "good") == program


async def test_a_crowd_of_made_up_ids_joins_nothing_and_keeps_nothing(serve: Any) -> None:
    crowd = [f"chatcmpl-tool-{number:08d}cafe" for number in range(9_000)]
    many = [{"role": "tool", "tool_call_id": each, "content": ""} for each in crowd]
    async with serve() as rig:
        for count in (1, len(many)):
            body = {"model": "m", "messages": [{"role": "user", "content": "hello"}, *many[:count]]}
            assert (await post(rig, CHAT_PATH, body))[1] == "request"
        assert (await post(rig, RESPONSES_PATH, {"model": "m", "input": "hello"}))[1] == "request"
        # That of the one answer that has an id.
        assert len(rig.store._answers) == 1
        assert (await rig.store.counts()).programs == 0


@dataclass(slots=True)
class Way:
    """One gateway on a table that it may share."""

    url: str
    client: aiohttp.ClientSession


@asynccontextmanager
async def gateways(settings: Settings, engines: int, count: int) -> AsyncIterator[list[Way]]:
    """Run gateways in front of the same engines."""
    async with AsyncExitStack() as stack:
        made = [FakeEngine(calling(), name=f"engine-{number}") for number in range(engines)]
        for engine in made:
            await engine.start()
            stack.push_async_callback(engine.stop)
        client = await stack.enter_async_context(aiohttp.ClientSession())
        apps = [create_app(settings, *made) for _ in range(count)]
        yield [Way(await stack.enter_async_context(listening(app)), client) for app in apps]


@pytest.mark.parametrize("headers", [{}, {"X-Session-ID": "named"}], ids=["unnamed", "named"])
async def test_a_response_is_continued_at_the_engine_that_has_it(headers: dict[str, str]) -> None:
    settings = Settings(balancer=BalancerSettings(name="round_robin"))
    first = {"model": "m", "input": "hello"}
    async with gateways(settings, engines=2, count=1) as [way]:

        async def respond(body: dict[str, Any]) -> tuple[str, str, str]:
            async with way.client.post(way.url + RESPONSES_PATH, json=body, headers=headers) as response:
                assert response.status == 200, await response.text()
                told = response.headers
                names = ("X-Autellix-Engine", "X-Autellix-Program-ID")
                return (*(told[name] for name in names), (await response.json())["id"])

        # An odd number, so that the turns of the engines would not repeat by chance.
        chains = [await respond(first) for _ in range(3)]
        assert len({engine for engine, _, _ in chains}) == 2
        for _ in range(3):
            continued = [await respond({**first, "previous_response_id": last}) for _, _, last in chains]
            assert [each[:2] for each in continued] == [each[:2] for each in chains]
            chains = continued


async def test_a_stored_response_is_read_and_cancelled_at_the_engine_that_has_it() -> None:
    settings = Settings(balancer=BalancerSettings(name="round_robin"))
    async with AsyncExitStack() as stack:
        engines = [FakeEngine(name=f"engine-{number}") for number in range(3)]
        for engine in engines:
            await engine.start()
            stack.push_async_callback(engine.stop)
        url = await stack.enter_async_context(listening(create_app(settings, *engines)))
        client = await stack.enter_async_context(aiohttp.ClientSession())
        for _ in engines:
            async with client.post(url + RESPONSES_PATH, json={"model": "m", "input": "hello"}) as response:
                made = engines[[each.name for each in engines].index(response.headers["X-Autellix-Engine"])]
                path = f"{RESPONSES_PATH}/{(await response.json())['id']}"
            for read in (client.get(url + path), client.post(url + path + "/cancel")):
                async with read as response:
                    assert response.status == 200
            assert [each.path for each in made.requests][-2:] == [path, path + "/cancel"]
        paths = [
            [sent.path for sent in each.requests if sent.path.startswith(RESPONSES_PATH)] for each in engines
        ]
        assert {len(each) for each in paths} == {3}
        async with client.get(f"{url}{RESPONSES_PATH}/resp_unknown0") as response:
            assert response.status == 200


def test_gateways_that_share_a_table_share_the_answers(redis_program: str, tmp_path: Any) -> None:
    server = RedisServer(redis_program, tmp_path)
    settings = Settings(store=StoreSettings(url=server.url, key_prefix="agents", timeout_ms=2000))

    async def main() -> None:
        async with gateways(settings, engines=1, count=2) as ways:
            tasks = [Task(agent) for agent in AGENTS.values()]
            first = [await step(ways[0], task) for task in tasks]
            assert len(set(first)) == len(tasks)
            assert [await step(ways[1], task) for task in tasks] == first
            assert [await step(ways[0], task) for task in tasks] == first

    server.start()
    try:
        asyncio.run(main())
    finally:
        server.stop()
