"""LangGraph: the calls of a graph are one program, and depend on each other as its edges say."""

from __future__ import annotations

import asyncio
import operator
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import pytest
from tests.integrations.langchain.conftest import by_invoke, by_stream
from tests.integrations.programs import load
from tests.waiting import PATIENCE_S, wait_until

from autellix.testing import RecordingBackend, tool_call

pytest.importorskip("langgraph")
pytest.importorskip("langchain_openai")

import langgraph.pregel.main
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.pregel._executor import BackgroundExecutor

if TYPE_CHECKING:
    from langchain_openai import ChatOpenAI

Drive = Callable[..., Any]
PROGRAMS = Path(__file__).parent / "programs"
INPUTS = {
    "map_reduce": {"jokes": []},
    "supervisor": {"done": []},
    "react_tools": {"messages": [HumanMessage("Which city is larger?")]},
}


class Parts(TypedDict, total=False):
    parts: Annotated[list[str], operator.add]


def asks(chat: ChatOpenAI, *questions: str) -> Callable[[Parts], Parts]:
    """Make a node that asks one question after another."""

    def node(state: Parts) -> Parts:
        return {"parts": [str(chat.invoke(question).content) for question in questions]}

    return node


def asks_async(chat: ChatOpenAI, *questions: str) -> Callable[[Parts], Any]:
    """Make an async node that asks one question after another."""

    async def node(state: Parts) -> Parts:
        return {"parts": [str((await chat.ainvoke(question)).content) for question in questions]}

    return node


def meeting(*questions: str) -> Callable[[dict[str, Any]], str]:
    """Answer these questions only once all have been asked: what is seen to have finished must not matter."""
    barrier = threading.Barrier(len(questions))

    def answer(body: dict[str, Any]) -> str:
        if body["messages"][-1]["content"] in questions:
            barrier.wait(PATIENCE_S)
        return "hello"

    return answer


def compiled(nodes: dict[str, Any], edges: list[tuple[str, str]], name: str) -> Any:
    graph = StateGraph(Parts)
    for key, node in nodes.items():
        graph.add_node(key, node)
    for start, end in edges:
        graph.add_edge(start, end)
    return graph.compile(name=name)


DIAMOND = [(START, "a"), ("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("d", END)]


@pytest.mark.parametrize("name", sorted(INPUTS))
def test_example_programs(name: str, drive: Drive, chat: ChatOpenAI, backend: RecordingBackend) -> None:
    """The programs that also run through the real backend, in every way to run them."""
    module = load(PROGRAMS / f"{name}.py")
    drive(module.build(chat), INPUTS[name])
    assert backend.dag() == module.EXPECTED
    assert len(backend.programs()) == 1
    assert {call.program_name for call in backend.recorded} == {name.replace("_", "-").removesuffix("-tools")}


@pytest.mark.parametrize("name", ["map_reduce", "supervisor"])
async def test_runs_at_once_are_programs_of_their_own(
    name: str, chat: ChatOpenAI, backend: RecordingBackend
) -> None:
    """Ten runs of one graph on one loop: ten programs, each with the whole DAG."""
    module = load(PROGRAMS / f"{name}.py")
    graph = module.build(chat)

    async def run_all() -> None:
        await asyncio.gather(*(graph.ainvoke(INPUTS[name]) for _ in range(10)))

    await run_all()
    programs = backend.programs()
    assert len(programs) == 10
    for calls in programs.values():
        contents = {call.call_id: call.content for call in calls}
        dag = {c.content: tuple(sorted(contents[parent] for parent in c.parents or ())) for c in calls}
        assert dag == module.EXPECTED


@pytest.mark.parametrize("make", [asks, asks_async])
async def test_branches_of_several_calls(make: Any, chat: ChatOpenAI, backend: RecordingBackend) -> None:
    nodes = {
        "a": make(chat, "a"),
        "b": make(chat, "b1", "b2"),
        "c": make(chat, "c"),
        "d": make(chat, "d"),
    }
    # Else the one may be over before the other begins, and be followed on its thread.
    backend.answer = meeting("b1", "c")
    await compiled(nodes, DIAMOND, "diamond").ainvoke({"parts": []})
    assert backend.dag() == {"a": (), "b1": ("a",), "b2": ("b1",), "c": ("a",), "d": ("b2", "c")}
    assert len({call.thread_id for call in backend.recorded if call.content in "b1c"}) == 2


def test_branches_are_named_after_their_nodes(
    drive: Drive, chat: ChatOpenAI, backend: RecordingBackend
) -> None:
    """The thread of the graph itself goes from node to node, so it has no name."""
    make = asks if drive in (by_invoke, by_stream) else asks_async
    nodes = {name: make(chat, f"{name}1", f"{name}2") for name in "abcd"}
    drive(compiled(nodes, DIAMOND, "diamond"), {"parts": []})
    names = {call.content: call.thread_name for call in backend.recorded}
    assert names == {
        **dict.fromkeys(("a1", "a2", "d1", "d2")),
        **dict.fromkeys(("b1", "b2"), "b"),
        **dict.fromkeys(("c1", "c2"), "c"),
    }


def test_a_branch_is_named_after_its_own_node(
    chat: ChatOpenAI, backend: RecordingBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after the first one of a graph inside it, however late the job begins."""
    submit, output = BackgroundExecutor.submit, langgraph.pregel.main._output
    between_waits = threading.Event()

    def submit_(self: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        def late(*args: Any, **kwargs: Any) -> Any:
            between_waits.wait(PATIENCE_S)
            return function(*args, **kwargs)

        is_late = getattr(args[0], "name", None) == "c"
        return submit(self, late if is_late else function, *args, **kwargs)

    def output_(*args: Any, **kwargs: Any) -> Any:
        done = {call.content for call in backend.recorded}
        if "b1" in done and threading.current_thread() is threading.main_thread():
            between_waits.set()
            wait_until(lambda: len(backend.recorded) >= 3)
        return output(*args, **kwargs)

    monkeypatch.setattr(BackgroundExecutor, "submit", submit_)
    monkeypatch.setattr(langgraph.pregel.main, "_output", output_)
    edges = [(START, "inner"), ("inner", END)]
    inner = {name: compiled({"inner": asks(chat, f"{name}1")}, edges, "inner") for name in "bc"}
    nodes = {"a": asks(chat, "a1"), **inner, "d": asks(chat, "d1")}
    compiled(nodes, DIAMOND, "diamond").invoke({"parts": []})
    names = {call.content: call.thread_name for call in backend.recorded}
    assert names == {"a1": None, "b1": "b", "c1": "c", "d1": None}


@pytest.mark.parametrize("is_streamed", [False, True])
def test_branches_started_late_wait_for_none(
    is_streamed: bool, chat: ChatOpenAI, backend: RecordingBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LangGraph submits the nodes of a step one by one: the first is done before the last is submitted."""
    original = BackgroundExecutor.submit

    def submit(*args: Any, **kwargs: Any) -> Any:
        future = original(*args, **kwargs)
        time.sleep(0.05)
        return future

    monkeypatch.setattr(BackgroundExecutor, "submit", submit)
    nodes = {key: asks(chat, key) for key in "abcd"}
    graph = compiled(nodes, DIAMOND, "diamond")
    if is_streamed:
        for _ in graph.stream({"parts": []}, stream_mode=["messages", "updates"], subgraphs=True):
            pass
    else:
        graph.invoke({"parts": []})
    assert backend.dag() == {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")}


def test_subgraphs(drive: Drive, chat: ChatOpenAI, backend: RecordingBackend) -> None:
    """A graph as a node of another, with branches of its own; two of them side by side."""

    def inner(name: str) -> Any:
        nodes = {key: asks(chat, f"{name}{key}") for key in "abcd"}
        return compiled(nodes, DIAMOND, f"inner-{name}")

    nodes = {"a": asks(chat, "first"), "b": inner("x"), "c": inner("y"), "d": asks(chat, "last")}
    drive(compiled(nodes, DIAMOND, "outer"), {"parts": []})
    assert backend.dag() == {
        "first": (),
        "xa": ("first",),
        "xb": ("xa",),
        "xc": ("xa",),
        "xd": ("xb", "xc"),
        "ya": ("first",),
        "yb": ("ya",),
        "yc": ("ya",),
        "yd": ("yb", "yc"),
        "last": ("xd", "yd"),
    }
    assert {call.program_name for call in backend.recorded} == {"outer"}


def test_graph_invoked_inside_a_node(drive: Drive, chat: ChatOpenAI, backend: RecordingBackend) -> None:
    """A graph that a node runs by itself, with another thread_id, belongs to the program of the outer one."""
    inner = compiled({"a": asks(chat, "inner")}, [(START, "a")], "inner")

    def node(state: Parts) -> Parts:
        chat.invoke("before")
        inner.invoke({"parts": []}, config={"configurable": {"thread_id": "other"}})
        chat.invoke("after")
        return {}

    drive(compiled({"a": node}, [(START, "a")], "outer"), {"parts": []})
    assert backend.dag() == {"before": (), "inner": ("before",), "after": ("inner",)}
    assert len(backend.programs()) == 1


def test_functional_api(drive: Drive, chat: ChatOpenAI, backend: RecordingBackend) -> None:
    @task
    def ask(question: str) -> str:
        return str(chat.invoke(question).content)

    @entrypoint()
    def flow(value: str) -> str:
        ask("first").result()
        for pending in [ask("left"), ask("right")]:
            pending.result()
        return ask("last").result()

    backend.answer = meeting("left", "right")
    drive(flow, "x")
    assert backend.dag() == {"first": (), "left": ("first",), "right": ("first",), "last": ("left", "right")}


def agent_of(chat: ChatOpenAI, backend: RecordingBackend) -> Any:
    """An agent of two tools, which call the model; it runs both at once, then one again."""
    agents = pytest.importorskip("langchain.agents")

    @tool
    def search(text: str) -> str:
        """Search."""
        return str(chat.invoke(f"search {text}").content)

    @tool
    async def asearch(text: str) -> str:
        """Search."""
        return str((await chat.ainvoke(f"search {text}")).content)

    def answer(body: dict[str, Any]) -> Any:
        last = body["messages"][-1]
        if not body.get("tools"):
            return f"found {last['content'].split()[-1]}"
        turns = sum(message["role"] == "assistant" for message in body["messages"])
        plan = [["x", "y"], ["z"]]
        if turns >= len(plan):
            return "done"
        return tool_call(*(("search", {"text": text}) for text in plan[turns]))

    backend.answer = answer

    def make(*, is_async: bool) -> Any:
        chosen = asearch if is_async else search
        chosen.name = "search"
        return agents.create_agent(chat, [chosen], name="agent")

    return make


AGENT = {
    "go": (),
    "search x": ("go",),
    "search y": ("go",),
    "found y": ("search x", "search y"),
    "search z": ("found y",),
    "found z": ("search z",),
}
"""What the agent sends ends with the last tool's result."""


def test_agent_with_parallel_tools(drive: Drive, chat: ChatOpenAI, backend: RecordingBackend) -> None:
    drive(agent_of(chat, backend)(is_async=False), {"messages": [HumanMessage("go")]})
    assert backend.dag() == AGENT


async def test_agent_with_parallel_async_tools(chat: ChatOpenAI, backend: RecordingBackend) -> None:
    agent = agent_of(chat, backend)(is_async=True)
    await agent.ainvoke({"messages": [HumanMessage("go")]})
    assert backend.dag() == AGENT


def test_graph_inside_a_tool(drive: Drive, chat: ChatOpenAI, backend: RecordingBackend) -> None:
    agents = pytest.importorskip("langchain.agents")
    inner = compiled({key: asks(chat, f"inner {key}") for key in "abcd"}, DIAMOND, "inner")

    @tool
    def delegate(text: str) -> str:
        """Delegate."""
        inner.invoke({"parts": []})
        return "done by the other"

    backend.answer = lambda body: (
        tool_call(("delegate", {"text": "x"}))
        if body.get("tools") and len(body["messages"]) == 1
        else "hello"
    )
    drive(agents.create_agent(chat, [delegate]), {"messages": [HumanMessage("go")]})
    assert backend.dag() == {
        "go": (),
        "inner a": ("go",),
        "inner b": ("inner a",),
        "inner c": ("inner a",),
        "inner d": ("inner b", "inner c"),
        "done by the other": ("inner d",),
    }
    assert len(backend.programs()) == 1


@pytest.mark.filterwarnings("ignore:create_react_agent has been moved")
def test_langgraph_supervisor(chat: ChatOpenAI, backend: RecordingBackend) -> None:
    """The package `langgraph-supervisor`: agents hand over by tool calls, all in one program."""
    langgraph_supervisor = pytest.importorskip("langgraph_supervisor")
    agents = pytest.importorskip("langchain.agents")

    def answer(body: dict[str, Any]) -> Any:
        tools = {entry["function"]["name"] for entry in body.get("tools", [])}
        if "transfer_to_worker" not in tools:
            return "work done"
        has_worked = any("work done" in str(message["content"]) for message in body["messages"])
        return "finished" if has_worked else tool_call(("transfer_to_worker", {}))

    backend.answer = answer
    worker = agents.create_agent(chat, [], name="worker")
    supervisor = langgraph_supervisor.create_supervisor([worker], model=chat).compile(name="team")
    supervisor.invoke({"messages": [HumanMessage("go")]})
    calls = backend.recorded
    assert len(calls) == 3
    assert [call.parents for call in calls] == [(), (calls[0].call_id,), (calls[1].call_id,)]
    assert {call.program_name for call in calls} == {"team"}
