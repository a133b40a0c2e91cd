"""Teams of every kind: one program each, and exactly the parents that the messages give their calls."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import random
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.integrations.autogen.labels import caller, dag, labelled
from tests.integrations.programs import load, shapes

import autellix
from autellix.testing import RecordingBackend, tool_call

pytest.importorskip("autogen_agentchat")
pytest.importorskip("autogen_ext.models.openai")

from autogen_agentchat.agents import AssistantAgent, SocietyOfMindAgent
from autogen_agentchat.base import TaskResult
from autogen_agentchat.conditions import HandoffTermination, MaxMessageTermination
from autogen_agentchat.messages import HandoffMessage
from autogen_agentchat.teams import (
    DiGraphBuilder,
    GraphFlow,
    MagenticOneGroupChat,
    RoundRobinGroupChat,
    SelectorGroupChat,
    Swarm,
)
from autogen_agentchat.tools import AgentTool
from autogen_core import CancellationToken, SingleThreadedAgentRuntime

from autellix_autogen import _causality

if TYPE_CHECKING:
    from autogen_ext.models.openai import OpenAIChatCompletionClient

MakeAgent = Callable[..., AssistantAgent]
Play = Callable[[Coroutine[Any, Any, Any]], Any]


def after(count: int) -> MaxMessageTermination:
    """End after so many calls; the task is a message as well."""
    return MaxMessageTermination(count + 1)


def flow(agents: dict[str, AssistantAgent], *edges: tuple[str, str], **options: Any) -> GraphFlow:
    builder = DiGraphBuilder()
    for member in agents.values():
        builder.add_node(member)
    for source, target in edges:
        builder.add_edge(agents[source], agents[target])
    return GraphFlow(list(agents.values()), graph=builder.build(), **options)


def only_program(backend: RecordingBackend) -> str:
    (program_id,) = backend.programs()
    assert program_id is not None
    return program_id


def test_round_robin_is_a_chain(backend: RecordingBackend, agent: MakeAgent, play: Play) -> None:
    team = RoundRobinGroupChat([agent("a"), agent("b")], name="debate", termination_condition=after(4))
    play(team.run(task="go"))
    assert dag(backend.recorded) == {"a1": (), "b1": ("a1",), "a2": ("b1",), "b2": ("a2",)}
    only_program(backend)
    assert {call.program_name for call in backend.recorded} == {"debate"}
    # An agent is a thread.
    threads = {label: call.thread_id for label, call in labelled(backend.recorded).items()}
    assert threads["a1"] == threads["a2"] != threads["b1"] == threads["b2"]
    assert [call.thread_name for call in backend.recorded] == ["a", "b", "a", "b"]


def test_streamed_answers_count_alike(backend: RecordingBackend, agent: MakeAgent, play: Play) -> None:
    team = RoundRobinGroupChat(
        [agent("a", model_client_stream=True), agent("b", model_client_stream=True)], max_turns=3
    )
    play(team.run(task="go"))
    assert dag(backend.recorded) == {"a1": (), "b1": ("a1",), "a2": ("b1",)}


def test_graph_flow_forks_and_joins(backend: RecordingBackend, agent: MakeAgent, play: Play) -> None:
    agents = {name: agent(name) for name in ("start", "b", "c", "end")}
    team = flow(agents, ("start", "b"), ("start", "c"), ("b", "end"), ("c", "end"))
    play(team.run(task="go"))
    assert dag(backend.recorded) == {
        "start1": (),
        "b1": ("start1",),
        "c1": ("start1",),
        "end1": ("b1", "c1"),
    }
    only_program(backend)
    threads = [call.thread_id for call in backend.recorded]
    assert len(set(threads)) == 4


@pytest.mark.parametrize("seed", range(5))
def test_random_graphs_with_delays(
    seed: int, backend: RecordingBackend, agent: MakeAgent, play: Play
) -> None:
    """In whatever order the answers come: each round depends on all of the one before."""
    chance = random.Random(seed)
    names = "abcdefghij"
    edges = [(names[chance.randrange(position)], names[position]) for position in range(1, len(names))]
    edges += [
        (source, target) for source, target in itertools.combinations(names, 2) if chance.random() < 0.15
    ]
    delays_s = {name: chance.uniform(0, 0.03) for name in names}

    def answer(body: dict[str, Any]) -> str:
        time.sleep(delays_s[caller(body)])
        return "hello"

    backend.answer = answer
    play(flow({name: agent(name) for name in names}, *dict.fromkeys(edges)).run(task="go"))
    rounds: list[list[str]] = []
    left = set(names)
    while left:
        ready = sorted(name for name in left if not any(source in left for source, to in edges if to == name))
        rounds.append(ready)
        left -= set(ready)
    assert dag(backend.recorded) == {
        f"{name}1": tuple(f"{source}1" for source in above)
        for above, layer in itertools.pairwise([[], *rounds])
        for name in layer
    }


def test_selector_call_comes_before_the_agents(
    backend: RecordingBackend, agent: MakeAgent, client: OpenAIChatCompletionClient, play: Play
) -> None:
    speakers = iter("abab")
    backend.answer = lambda body: next(speakers) if caller(body) == "selector" else "hello"
    team = SelectorGroupChat(
        [agent("a"), agent("b")],
        model_client=client,
        selector_prompt="selector {roles} {participants} {history}",
        allow_repeated_speaker=True,
        termination_condition=after(3),
    )
    play(team.run(task="go"))
    assert dag(backend.recorded) == {
        "selector1": (),
        "a1": ("selector1",),
        "selector2": ("a1",),
        "b1": ("selector2",),
        "selector3": ("b1",),
        "a2": ("selector3",),
    }
    calls = labelled(backend.recorded)
    assert len({calls[f"selector{number}"].thread_id for number in (1, 2, 3)}) == 1
    assert {calls[f"selector{number}"].thread_name for number in (1, 2, 3)} == {"SelectorGroupChatManager"}
    assert calls["a2"].thread_name == "a"


def test_swarm_hands_off_in_a_chain(backend: RecordingBackend, agent: MakeAgent, play: Play) -> None:
    def answer(body: dict[str, Any]) -> str | dict[str, Any]:
        hops = {"a": "transfer_to_b", "b": "transfer_to_c", "c": "transfer_to_user"}
        return tool_call((hops[caller(body)], {}))

    backend.answer = answer
    team = Swarm(
        [agent("a", handoffs=["b"]), agent("b", handoffs=["c"]), agent("c", handoffs=["user"])],
        termination_condition=HandoffTermination(target="user") | MaxMessageTermination(20),
    )

    async def converse() -> None:
        await team.run(task="go")
        await team.run(task=HandoffMessage(source="user", target="b", content="again"))

    play(converse())
    assert dag(backend.recorded) == {
        "a1": (),
        "b1": ("a1",),
        "c1": ("b1",),
        "b2": ("c1",),
        "c2": ("b2",),
    }
    only_program(backend)


LEDGER = {
    "is_request_satisfied": {"reason": "r", "answer": False},
    "is_progress_being_made": {"reason": "r", "answer": True},
    "is_in_loop": {"reason": "r", "answer": False},
    "instruction_or_question": {"reason": "r", "answer": "do it"},
    "next_speaker": {"reason": "r", "answer": "a"},
}


def test_magentic_one_plans_and_asks(
    backend: RecordingBackend, agent: MakeAgent, client: OpenAIChatCompletionClient, play: Play
) -> None:
    """Facts, plan, then a ledger before each step; the orchestrator's calls and the agents' form a chain."""
    steps = iter(["a", "b", "a", None])

    def answer(body: dict[str, Any]) -> str:
        if body.get("response_format", {}).get("type") != "json_object":
            return "hello"
        speaker = next(steps)
        ledger = {**LEDGER, "next_speaker": {"reason": "r", "answer": speaker or "a"}}
        ledger["is_request_satisfied"] = {"reason": "r", "answer": speaker is None}
        return json.dumps(ledger)

    backend.answer = answer
    team = MagenticOneGroupChat([agent("a"), agent("b")], model_client=client)
    result = play(team.run(task="go"))
    assert result.messages[-1].to_text() == "hello"
    # facts, plan, ledger, a, ledger, b, ledger, a, ledger, final answer
    calls = backend.recorded
    assert len(calls) == 10
    assert [call.parents for call in calls] == [(), *((call.call_id,) for call in calls[:-1])]
    only_program(backend)
    orchestrator = {call.thread_id for call in calls if caller(call.body) not in ("a", "b")}
    assert len(orchestrator) == 1


def test_society_of_mind_runs_its_team_inside(
    backend: RecordingBackend, agent: MakeAgent, client: OpenAIChatCompletionClient, play: Play
) -> None:
    inner = RoundRobinGroupChat([agent("x"), agent("y")], max_turns=2)
    mind = SocietyOfMindAgent(
        "mind", team=inner, model_client=client, instruction="mind", response_prompt="now"
    )
    outer = RoundRobinGroupChat([agent("a"), mind], max_turns=4)
    play(outer.run(task="go"))
    assert dag(backend.recorded) == {
        "a1": (),
        "x1": ("a1",),
        "y1": ("x1",),
        "mind1": ("y1",),
        "a2": ("mind1",),
        "x2": ("a2",),
        "y2": ("x2",),
        "mind2": ("y2",),
    }
    only_program(backend)


def test_team_as_a_member_of_a_team(backend: RecordingBackend, agent: MakeAgent, play: Play) -> None:
    agents = {name: agent(name) for name in ("s", "x", "y", "z")}
    inner = flow(agents, ("s", "x"), ("s", "y"), ("x", "z"), ("y", "z"), name="inner")
    outer = RoundRobinGroupChat([agent("a"), inner, agent("b")], max_turns=3)
    play(outer.run(task="go"))
    assert dag(backend.recorded) == {
        "a1": (),
        "s1": ("a1",),
        "x1": ("s1",),
        "y1": ("s1",),
        "z1": ("x1", "y1"),
        "b1": ("z1",),
    }
    only_program(backend)


def test_agents_as_tools_run_side_by_side(backend: RecordingBackend, agent: MakeAgent, play: Play) -> None:
    def answer(body: dict[str, Any]) -> str | dict[str, Any]:
        if caller(body) == "main" and len(body["messages"]) == 2:
            return tool_call(("x", {"task": "one"}), ("y", {"task": "two"}))
        return "hello"

    backend.answer = answer
    tools = [AgentTool(agent("x")), AgentTool(agent("y"))]
    team = RoundRobinGroupChat(
        [agent("main", tools=tools, reflect_on_tool_use=True), agent("b")], max_turns=2
    )
    play(team.run(task="go"))
    assert dag(backend.recorded) == {
        "main1": (),
        "x1": ("main1",),
        "y1": ("main1",),
        "main2": ("x1", "y1"),
        "b1": ("main2",),
    }


def test_a_single_agents_runs_are_programs(backend: RecordingBackend, agent: MakeAgent, play: Play) -> None:
    async def work() -> None:
        solo = agent("solo")
        await solo.run(task="one")
        _ = [event async for event in solo.run_stream(task="two")]
        with autellix.program("outer"):
            await solo.run(task="three")
            await solo.run(task="four")

    play(work())
    names = [call.program_name for call in backend.recorded]
    assert names == ["solo", "solo", "outer", "outer"]
    assert len(backend.programs()) == 3
    assert [call.parents for call in backend.recorded[:3]] == [(), (), ()]
    assert backend.recorded[3].parents == (backend.recorded[2].call_id,)


def test_calls_around_a_team_in_a_named_program(
    backend: RecordingBackend, agent: MakeAgent, client: OpenAIChatCompletionClient, play: Play
) -> None:
    """What the program does next comes after the team's last calls."""
    from autogen_core.models import SystemMessage

    agents = {name: agent(name) for name in ("s", "x", "y")}
    team = flow(agents, ("s", "x"), ("s", "y"))

    async def work() -> None:
        with autellix.program("mine"):
            await client.create([SystemMessage(content="first")])
            await team.run(task="go")
            await client.create([SystemMessage(content="last")])

    play(work())
    assert dag(backend.recorded) == {
        "first1": (),
        "s1": ("first1",),
        "x1": ("s1",),
        "y1": ("s1",),
        "last1": ("x1", "y1"),
    }
    assert only_program(backend)


def test_a_team_stays_one_program_until_its_reset(
    backend: RecordingBackend, agent: MakeAgent, play: Play
) -> None:
    team = RoundRobinGroupChat([agent("a"), agent("b")], max_turns=2)

    async def converse() -> None:
        await team.run(task="one")
        await team.run(task="two")
        await team.reset()
        await team.run(task="three")

    play(converse())
    assert dag(backend.recorded) == {
        "a1": (),
        "b1": ("a1",),
        "a2": ("b1",),
        "b2": ("a2",),
        "a3": (),
        "b3": ("a3",),
    }
    first, second = backend.programs().values()
    assert (len(first), len(second)) == (4, 2)
    ended = backend.wait_for("DELETE", "/programs/")
    assert [path.rpartition("/")[2] for _, path, _ in ended] == [first[0].program_id]


def test_teams_leave_no_state(backend: RecordingBackend, agent: MakeAgent, play: Play) -> None:
    async def work() -> None:
        for _ in range(10):
            team = RoundRobinGroupChat([agent("a"), agent("b")], max_turns=2)
            await team.run(task="go")
        del team
        gc.collect()
        await asyncio.sleep(0)

    gc.collect()
    before = len(_causality._memories)
    play(work())
    gc.collect()
    assert len(_causality._memories) <= before
    assert len(backend.wait_for("DELETE", "/programs/", 10)) == 10


def test_a_shared_runtime_keeps_teams_apart(backend: RecordingBackend, agent: MakeAgent, play: Play) -> None:
    async def work() -> None:
        runtime = SingleThreadedAgentRuntime()
        runtime.start()
        teams = [
            RoundRobinGroupChat([agent(f"{name}a"), agent(f"{name}b")], max_turns=4, runtime=runtime)
            for name in "xy"
        ]
        await asyncio.gather(*(team.run(task="go") for team in teams))
        await runtime.stop()

    play(work())
    for calls in backend.programs().values():
        assert [call.parents for call in calls] == [(), *((call.call_id,) for call in calls[:-1])]
    assert len(backend.programs()) == 2


def test_errors_reach_the_user_as_they_are(backend: RecordingBackend, agent: MakeAgent, play: Play) -> None:
    team = RoundRobinGroupChat([agent("a"), agent("b")], max_turns=2)

    async def work() -> None:
        backend.statuses = [200, 400]
        with pytest.raises(RuntimeError, match="scripted"):
            await team.run(task="go")
        assert autellix.current().is_implicit

    play(work())
    assert dag(backend.recorded) == {"a1": (), "b1": ("a1",)}
    only_program(backend)


def test_a_timeout_stops_the_run(backend: RecordingBackend, agent: MakeAgent, play: Play) -> None:
    team = RoundRobinGroupChat([agent("a"), agent("b")], max_turns=2)

    def answer(body: dict[str, Any]) -> str:
        time.sleep(0.1)
        return "hello"

    async def work() -> None:
        backend.answer = answer
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await team.run(task="go")
        assert autellix.current().is_implicit
        await team.run(task="again")

    play(work())
    only_program(backend)
    assert all(call.parents is not None for call in backend.recorded)


def test_cancelling_leaves_nothing_behind(backend: RecordingBackend, agent: MakeAgent, play: Play) -> None:
    team = RoundRobinGroupChat([agent("a"), agent("b")])

    async def work() -> None:
        token = CancellationToken()

        def answer(body: dict[str, Any]) -> str:
            if len(backend.recorded) == 3:
                loop.call_soon_threadsafe(token.cancel)
            return "hello"

        loop = asyncio.get_running_loop()
        backend.answer = answer
        with pytest.raises((asyncio.CancelledError, RuntimeError)):
            await team.run(task="go", cancellation_token=token)
        assert autellix.current().is_implicit
        await team.reset()

    play(work())
    calls = dag(backend.recorded)
    assert {name: calls[name] for name in ("a1", "b1", "a2")} == {"a1": (), "b1": ("a1",), "a2": ("b1",)}


def test_a_consumer_that_leaves_early(backend: RecordingBackend, agent: MakeAgent, play: Play) -> None:
    team = RoundRobinGroupChat([agent("a"), agent("b")], max_turns=2)

    async def work() -> list[Any]:
        seen = []
        stream = team.run_stream(task="go")
        async for event in stream:
            # The consumer is outside.
            assert autellix.current().is_implicit
            seen.append(event)
            break
        await stream.aclose()
        assert autellix.current().is_implicit
        return seen

    assert len(play(work())) == 1
    only_program(backend)


def test_teams_work_when_the_client_is_off(backend: RecordingBackend, agent: MakeAgent, play: Play) -> None:
    autellix.uninstrument()
    team = RoundRobinGroupChat([agent("a"), agent("b")], max_turns=2)
    result = play(team.run(task="go"))
    assert isinstance(result, TaskResult)
    assert {call.program_id for call in backend.recorded} == {None}


PROGRAMS = sorted(Path(__file__).parent.glob("programs/*.py"))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_example_program(path: Path, backend: RecordingBackend) -> None:
    """The programs that also run on the real backend."""
    module = load(path)
    backend.answer = obey
    module.run(base_url=backend.url, model="recording")
    only_program(backend)
    parents = {call.call_id: call.parents or () for call in backend.recorded}
    assert shapes(parents) == shapes(module.EXPECTED)


def obey(body: dict[str, Any]) -> str | dict[str, Any]:
    """Call the tool that the request names, as a model must."""
    choice = body.get("tool_choice")
    return tool_call((choice["function"]["name"], {})) if isinstance(choice, dict) else "done"
