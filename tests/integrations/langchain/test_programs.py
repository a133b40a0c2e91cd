"""What is a program: root runs, streams, conversations, and what is not; and that nothing else changes."""

from __future__ import annotations

import asyncio
import gc
import operator
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import pytest

import autellix
from autellix.testing import RecordingBackend

pytest.importorskip("langgraph")
pytest.importorskip("langchain_openai")

from langchain_core.callbacks import BaseCallbackManager, CallbackManager
from langchain_core.callbacks.manager import atrace_as_chain_group, trace_as_chain_group
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from autellix_langchain import AutellixCallback
from autellix_langchain._runs import MAX_OPEN, OpenRuns, conversation_id

if TYPE_CHECKING:
    from langchain_openai import ChatOpenAI


class Parts(TypedDict, total=False):
    parts: Annotated[list[str], operator.add]


def two_steps(chat: ChatOpenAI, name: str, *, checkpointer: Any = None) -> Any:
    """A graph of two calls, `<name>1` and `<name>2`."""
    graph = StateGraph(Parts)
    for number in ("1", "2"):

        def node(state: Parts, question: str = name + number) -> Parts:
            return {"parts": [str(chat.invoke(question).content)]}

        graph.add_node(number, node)
    graph.add_edge(START, "1")
    graph.add_edge("1", "2")
    return graph.compile(name=name, checkpointer=checkpointer)


def ids(backend: RecordingBackend) -> dict[str, str | None]:
    return {call.content: call.program_id for call in backend.recorded}


def test_each_root_run_is_a_program(chat: ChatOpenAI, backend: RecordingBackend) -> None:
    two_steps(chat, "a").invoke({"parts": []})
    two_steps(chat, "b").invoke({"parts": []})
    found = ids(backend)
    assert found["a1"] == found["a2"] != found["b1"] == found["b2"]
    assert backend.dag() == {"a1": (), "a2": ("a1",), "b1": (), "b2": ("b1",)}
    assert [call.program_name for call in backend.recorded] == ["a", "a", "b", "b"]
    for program in backend.programs():
        backend.wait_for("DELETE", f"programs/{program}")


def test_bare_model_calls_stay_the_scripts(chat: ChatOpenAI, backend: RecordingBackend) -> None:
    """A hand-written loop around a model is one program, not one per call."""
    chat.invoke("one")
    list(chat.stream("two"))
    asyncio.run(chat.ainvoke("three"))
    assert len(backend.programs()) == 1
    assert {call.header("X-Autellix-Flags") for call in backend.recorded} == {"implicit"}


def test_run_inside_a_named_program_belongs_to_it(chat: ChatOpenAI, backend: RecordingBackend) -> None:
    with autellix.program("mine") as mine:
        two_steps(chat, "a").invoke({"parts": []})
        two_steps(chat, "b").invoke({"parts": []})
    assert set(ids(backend).values()) == {mine.program_id}
    assert backend.dag() == {"a1": (), "a2": ("a1",), "b1": ("a2",), "b2": ("b1",)}


def test_run_inside_a_web_request_is_a_program(chat: ChatOpenAI, backend: RecordingBackend) -> None:
    from autellix._scopes.scopes import ProgramScope

    with ProgramScope("POST /chat", is_implicit=True):
        chat.invoke("before")
        two_steps(chat, "a").invoke({"parts": []})
        chat.invoke("after")
    names = {call.content: call.program_name for call in backend.recorded}
    assert names == {"before": "POST /chat", "a1": "a", "a2": "a", "after": "POST /chat"}


async def test_chain_group_is_a_program(chat: ChatOpenAI, backend: RecordingBackend) -> None:
    with trace_as_chain_group("sync") as group:
        two_steps(chat, "a").invoke({"parts": []}, {"callbacks": group})
        chat.invoke("bare")
    chat.invoke("after")

    async def run() -> None:
        async with atrace_as_chain_group("async") as agroup:
            await two_steps(chat, "b").ainvoke({"parts": []}, {"callbacks": agroup})
        await chat.ainvoke("after all")

    await run()
    names = {call.content: call.program_name for call in backend.recorded}
    assert names == {
        **dict.fromkeys(["a1", "a2", "bare"], "sync"),
        "after": None,
        **dict.fromkeys(["b1", "b2"], "async"),
        "after all": None,
    }
    assert backend.dag()["bare"] == ("a2",)


@pytest.mark.parametrize("place", ["config", "constructor", "manager", "nowhere"])
def test_explicit_callback_beside_the_automatic_one(
    place: str, chat: ChatOpenAI, backend: RecordingBackend
) -> None:
    """However the handler is given, a run is one program."""
    graph = two_steps(chat, "a")
    config: Any = {}
    if place == "config":
        config = {"callbacks": [AutellixCallback()]}
    elif place == "manager":
        config = {"callbacks": CallbackManager([AutellixCallback()])}
    elif place == "constructor":
        graph = graph.with_config(callbacks=[AutellixCallback()])
        chat.callbacks = [AutellixCallback()]
    graph.invoke({"parts": []}, config)
    assert backend.dag() == {"a1": (), "a2": ("a1",)}
    assert len(backend.programs()) == 1


def test_explicit_callback_alone(
    chat: ChatOpenAI, backend: RecordingBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = BaseCallbackManager.__init__.__wrapped__  # type: ignore[attr-defined]
    monkeypatch.setattr(BaseCallbackManager, "__init__", original)
    graph = two_steps(chat, "a")
    graph.invoke({"parts": []}, {"callbacks": [AutellixCallback()]})
    graph.invoke({"parts": []})
    first, second = (calls for calls in backend.programs().values())
    assert {call.program_name for call in first} == {"a"}
    assert {call.program_name for call in second} == {None}


def test_uninstrument_restores(chat: ChatOpenAI, backend: RecordingBackend) -> None:
    autellix.uninstrument()
    assert CallbackManager([]).handlers == []
    two_steps(chat, "a").invoke({"parts": []})
    assert [call.program_id for call in backend.recorded] == [None, None]


# Streams


def test_consumer_is_outside_the_program(chat: ChatOpenAI, backend: RecordingBackend) -> None:
    for number, _ in enumerate(two_steps(chat, "a").stream({"parts": []})):
        chat.invoke(f"consumer{number}")
    found = ids(backend)
    assert found["consumer0"] == found["consumer1"] != found["a1"] == found["a2"]
    assert backend.dag()["a2"] == ("a1",)


async def test_async_consumer_is_outside_the_program(chat: ChatOpenAI, backend: RecordingBackend) -> None:
    async def consume() -> None:
        number = 0
        async for _ in two_steps(chat, "a").astream({"parts": []}):
            await chat.ainvoke(f"consumer{number}")
            number += 1

    await consume()
    found = ids(backend)
    assert found["consumer0"] == found["consumer1"] != found["a1"] == found["a2"]
    assert backend.dag()["a2"] == ("a1",)


def test_interleaved_streams_do_not_mix(chat: ChatOpenAI, backend: RecordingBackend) -> None:
    left = two_steps(chat, "a").stream({"parts": []})
    right = two_steps(chat, "b").stream({"parts": []})
    for _ in zip(left, right, strict=True):
        pass
    assert [call.content for call in backend.recorded] == ["a1", "b1", "a2", "b2"]
    assert backend.dag() == {"a1": (), "a2": ("a1",), "b1": (), "b2": ("b1",)}
    assert len(backend.programs()) == 2


async def test_interleaved_async_streams_do_not_mix(chat: ChatOpenAI, backend: RecordingBackend) -> None:
    async def consume() -> None:
        left = two_steps(chat, "a").astream({"parts": []})
        right = two_steps(chat, "b").astream({"parts": []})
        for stream in (left, right, left, right):
            await anext(stream)
        await left.aclose()
        await right.aclose()

    await consume()
    assert backend.dag() == {"a1": (), "a2": ("a1",), "b1": (), "b2": ("b1",)}
    assert len(backend.programs()) == 2


@pytest.mark.parametrize("kind", ["graph", "sequence"])
def test_abandoned_stream_ends_its_program(kind: str, chat: ChatOpenAI, backend: RecordingBackend) -> None:
    runnable = two_steps(chat, "a") if kind == "graph" else RunnableLambda(lambda _: "a1") | chat
    for _ in runnable.stream({"parts": []}):
        break
    gc.collect()
    program = ids(backend)["a1"]
    chat.invoke("after")
    assert ids(backend)["after"] != program
    assert backend.wait_for("DELETE", f"programs/{program}")


@pytest.mark.parametrize("kind", ["graph", "sequence"])
async def test_abandoned_async_stream_ends_its_program(
    kind: str, chat: ChatOpenAI, backend: RecordingBackend
) -> None:
    runnable = two_steps(chat, "a") if kind == "graph" else RunnableLambda(lambda _: "a1") | chat

    async def consume() -> None:
        async for _ in runnable.astream({"parts": []}):
            break
        await chat.ainvoke("after")

    await consume()
    gc.collect()
    found = ids(backend)
    assert found["after"] != found["a1"]
    assert backend.wait_for("DELETE", f"programs/{found['a1']}")


# Conversations


def test_turns_of_a_thread_are_one_program(chat: ChatOpenAI, backend: RecordingBackend) -> None:
    graph = two_steps(chat, "a", checkpointer=InMemorySaver())
    for thread in ("x", "y", "x"):
        graph.invoke({"parts": []}, {"configurable": {"thread_id": thread}})
    x, y = backend.programs()
    assert str(x).startswith("a-x-")
    assert str(y).startswith("a-y-")
    assert [call.program_id for call in backend.recorded] == [x, x, y, y, x, x]
    # Other processes may continue it, each in a session of its own: no exit of one ends it for all.
    assert {call.session_id for call in backend.recorded} == {autellix.current().session_id}
    calls = backend.recorded
    # The third turn comes after the first one.
    assert calls[4].parents == (calls[1].call_id,)
    assert not [entry for entry in backend.control if entry[0] == "DELETE"]


def test_interrupted_run_continues_in_its_program(
    chat: ChatOpenAI, backend: RecordingBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """A human in the loop: the run that resumes is a further turn of the same program."""

    def node(state: Parts) -> Parts:
        interrupt("really?")
        chat.invoke("second")
        return {}

    graph = StateGraph(Parts)
    graph.add_node("1", lambda state: {"parts": [str(chat.invoke("first").content)]})
    graph.add_node("2", node)
    graph.add_edge(START, "1")
    graph.add_edge("1", "2")
    approved = graph.compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "x"}}
    approved.invoke({"parts": []}, config)
    approved.invoke(Command(resume="yes"), config)
    assert backend.dag() == {"first": (), "second": ("first",)}
    assert len(backend.programs()) == 1
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


def test_a_session_of_the_users_stays(chat: ChatOpenAI, backend: RecordingBackend) -> None:
    graph = two_steps(chat, "a", checkpointer=InMemorySaver())
    with autellix.session(id="mine"):
        graph.invoke({"parts": []}, {"configurable": {"thread_id": "x"}})
    assert {call.session_id for call in backend.recorded} == {"mine"}
    (program_id,) = backend.programs()
    assert str(program_id).startswith("a-x-")


def test_ids_of_conversations() -> None:
    odd = ["x" * 300, "ü", "a\nb", "", "\ud800"]
    found = {conversation_id("LangGraph", thread, "/one/app.py\ud800", "memory") for thread in odd}
    assert len(found) == len(odd)
    for text in found:
        assert 1 <= len(text) <= 256
        assert text.isascii()
        assert text.isprintable()
    same = ("a", "x", "/one/app.py", "memory")
    for place in range(len(same)):
        other = (*same[:place], "other", *same[place + 1 :])
        assert conversation_id(*same) == conversation_id(*same) != conversation_id(*other)


# Results, errors, cancellations


def fails(_: Any) -> Any:
    raise KeyError("users")


def test_error_ends_the_program_and_is_the_users(
    drive: Any, chat: ChatOpenAI, backend: RecordingBackend
) -> None:
    chain = RunnableLambda(lambda _: "a1") | chat | fails
    with pytest.raises(KeyError, match="users"):
        drive(chain, "x")
    chat.invoke("after")
    assert ids(backend)["after"] != ids(backend)["a1"]


async def test_cancelled_run(chat: ChatOpenAI, backend: RecordingBackend) -> None:
    async def node(state: Parts) -> Parts:
        await chat.ainvoke("a1")
        await asyncio.sleep(60)
        return {}

    graph = StateGraph(Parts)
    graph.add_node("a", node)
    graph.add_edge(START, "a")

    run = asyncio.create_task(graph.compile().ainvoke({"parts": []}))
    while not backend.recorded:  # noqa: ASYNC110 - the backend runs in a thread
        await asyncio.sleep(0.001)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await chat.ainvoke("after")
    assert ids(backend)["after"] != ids(backend)["a1"]


@pytest.mark.parametrize("kind", ["invoke", "ainvoke"])
def test_retry_and_fallbacks(kind: str, chat: ChatOpenAI, backend: RecordingBackend) -> None:
    """A retried or a second step comes after the one that failed, in the same program."""
    tries: list[str] = []

    def flaky(_: Any) -> str:
        tries.append("try")
        chat.invoke(f"try{len(tries)}")
        if len(tries) < 2:
            raise ValueError("not yet")
        return "tried"

    def broken(_: Any) -> str:
        chat.invoke("broken")
        raise ValueError("never")

    retried = RunnableLambda(flaky).with_retry(wait_exponential_jitter=False)
    chain = retried | RunnableLambda(broken).with_fallbacks([RunnableLambda(lambda _: "instead") | chat])
    if kind == "invoke":
        chain.invoke("x")
    else:
        asyncio.run(chain.ainvoke("x"))
    assert backend.dag() == {"try1": (), "try2": ("try1",), "broken": ("try2",), "instead": ("broken",)}
    assert len(backend.programs()) == 1


def test_runs_that_never_end_are_bounded(sdk: None) -> None:
    runs = OpenRuns()
    for number in range(MAX_OPEN + 10):
        runs.start_tool(number, "tool")
    assert len(runs) == MAX_OPEN


def test_faults_of_ours_are_not_the_users(
    chat: ChatOpenAI, backend: RecordingBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*_: Any, **__: Any) -> None:
        raise RuntimeError("ours")

    for name in ("start", "end", "start_tool", "end_tool"):
        monkeypatch.setattr(OpenRuns, name, fault)
    assert two_steps(chat, "a").invoke({"parts": []}) == {"parts": ["hello", "hello"]}
