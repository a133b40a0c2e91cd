"""LangChain's own runnables: parallel steps and batches; and tools as interceptions."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import types
from typing import TYPE_CHECKING, Any

import pytest
from tests.waiting import PATIENCE_S

from autellix.testing import RecordingBackend
from autellix_wire import headers
from autellix_wire.ids import parse_interceptions

pytest.importorskip("langchain_openai")

from langchain_core.runnables import RunnableLambda, RunnableParallel
from langchain_core.runnables.config import ContextThreadPoolExecutor
from langchain_core.tools import tool

if TYPE_CHECKING:
    from langchain_openai import ChatOpenAI


def asks(chat: ChatOpenAI, question: str) -> Any:
    return RunnableLambda(lambda _: question) | chat


def test_parallel(drive: Any, chat: ChatOpenAI, backend: RecordingBackend) -> None:
    parallel = RunnableParallel(
        left=asks(chat, "left"), right=asks(chat, "right") | asks(chat, "right again")
    )
    barrier = threading.Barrier(2)

    def answer(body: dict[str, Any]) -> str:
        # Streamed branches are submitted one by one: neither may have finished before both are there.
        if body["messages"][-1]["content"] in ("left", "right"):
            barrier.wait(PATIENCE_S)
        return "hello"

    backend.answer = answer
    drive(asks(chat, "first") | parallel | asks(chat, "last"), "x")
    assert backend.dag() == {
        "first": (),
        "left": ("first",),
        "right": ("first",),
        "right again": ("right",),
        "last": ("left", "right again"),
    }
    assert {call.program_name for call in backend.recorded} == {"RunnableSequence"}


def test_branches_started_late_wait_for_none(
    chat: ChatOpenAI, backend: RecordingBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first branch has its answer before the last is submitted, in a root run and inside one."""
    original = ContextThreadPoolExecutor.submit

    def submit(*args: Any, **kwargs: Any) -> Any:
        future = original(*args, **kwargs)
        time.sleep(0.05)
        return future

    monkeypatch.setattr(ContextThreadPoolExecutor, "submit", submit)
    parallel = RunnableParallel(left=asks(chat, "left"), right=asks(chat, "right"))
    parallel.invoke("x")
    assert backend.dag() == {"left": (), "right": ()}
    assert len(backend.programs()) == 1
    backend.recorded.clear()
    (RunnableLambda(lambda _: ["a", "b"]) | (RunnableLambda(str) | chat).map() | asks(chat, "end")).invoke(
        "x"
    )
    assert backend.dag() == {"a": (), "b": (), "end": ("a", "b")}


def run_batch(runnable: Any, inputs: list[Any], kind: str, **more: Any) -> Any:
    if kind == "batch":
        return runnable.batch(inputs, **more)
    return asyncio.run(runnable.abatch(inputs, **more))


@pytest.mark.parametrize("kind", ["batch", "abatch"])
def test_batch_is_a_program_for_each_item(kind: str, chat: ChatOpenAI, backend: RecordingBackend) -> None:
    def item(name: str) -> Any:
        chat.invoke(f"{name}1")
        return chat.invoke(f"{name}2")

    run_batch(RunnableLambda(item), ["a", "b", "c"], kind)
    assert backend.dag() == {
        "a1": (),
        "a2": ("a1",),
        "b1": (),
        "b2": ("b1",),
        "c1": (),
        "c2": ("c1",),
    }
    assert len(backend.programs()) == 3


@pytest.mark.parametrize("kind", ["batch", "abatch"])
def test_batch_of_a_sequence_is_one_program(kind: str, chat: ChatOpenAI, backend: RecordingBackend) -> None:
    """It takes all items through each step together."""
    chain = RunnableLambda(lambda name: f"{name}1") | chat | RunnableLambda(lambda _: "again") | chat
    run_batch(chain, ["a", "b"], kind)
    first, second, *others = backend.recorded
    assert {first.content, second.content} == {"a1", "b1"}
    assert first.parents == second.parents == ()
    for call in others:
        assert set(call.parents or ()) == {first.call_id, second.call_id}
    assert {call.program_name for call in backend.recorded} == {"RunnableSequence"}
    assert len(backend.programs()) == 1


@pytest.mark.parametrize("kind", ["batch", "abatch"])
def test_batch_inside_a_run_belongs_to_it(kind: str, chat: ChatOpenAI, backend: RecordingBackend) -> None:
    def outer(_: Any) -> Any:
        asks(chat, "plan").invoke("x")
        chain = RunnableLambda(lambda name: name) | chat
        chain.batch(["a", "b"])
        return chat.invoke("end")

    async def aouter(_: Any) -> Any:
        await asks(chat, "plan").ainvoke("x")
        await (RunnableLambda(lambda name: name) | chat).abatch(["a", "b"])
        return await chat.ainvoke("end")

    if kind == "batch":
        RunnableLambda(outer).invoke("x")
    else:
        asyncio.run(RunnableLambda(outer, aouter).ainvoke("x"))
    assert backend.dag() == {"plan": (), "a": ("plan",), "b": ("plan",), "end": ("a", "b")}


@pytest.mark.parametrize("kind", ["batch", "abatch"])
def test_batches_with_retry_and_fallbacks(kind: str, chat: ChatOpenAI, backend: RecordingBackend) -> None:
    def broken(name: str) -> str:
        chat.invoke(f"broken {name}")
        if name == "a":
            raise ValueError("never")
        return name

    chain = RunnableLambda(broken).with_fallbacks([RunnableLambda(lambda name: f"instead {name}") | chat])
    run_batch(chain, ["a", "b"], kind)
    assert len(backend.programs()) == 1
    assert backend.dag() == {
        "broken a": (),
        "broken b": (),
        "instead a": ("broken a", "broken b"),
    }
    with pytest.raises(ValueError, match="never"):
        run_batch(
            RunnableLambda(broken).with_retry(stop_after_attempt=2, wait_exponential_jitter=False),
            ["a", "b"],
            kind,
        )
    assert len(backend.programs()) == 2


def test_batch_as_completed(chat: ChatOpenAI, backend: RecordingBackend) -> None:
    chain = RunnableLambda(lambda name: f"{name}1") | chat
    assert sorted(number for number, _ in chain.batch_as_completed(["a", "b"])) == [0, 1]
    assert backend.dag() == {"a1": (), "b1": ()}
    assert len(backend.programs()) == 2


# Tools


def interceptions(call: Any) -> dict[str, float]:
    return dict(parse_interceptions(call.header(headers.INTERCEPTIONS), headers.INTERCEPTIONS))


@tool
def search(text: str) -> str:
    """Search."""
    time.sleep(0.02)
    return text


@tool
async def asearch(text: str) -> str:
    """Search."""
    await asyncio.sleep(0.02)
    return text


@tool
def broken(text: str) -> str:
    """Fail."""
    raise ValueError(text)


def test_tool_is_an_interception_before_the_next_call(
    drive: Any, chat: ChatOpenAI, backend: RecordingBackend
) -> None:
    drive(asks(chat, "plan") | (lambda _: {"text": "x"}) | search | asks(chat, "use"), "x")
    plan, use = backend.recorded
    assert interceptions(plan) == {}
    assert list(interceptions(use)) == ["search"]
    assert 0.02 <= interceptions(use)["search"] < 2


def test_async_and_failing_tools(chat: ChatOpenAI, backend: RecordingBackend) -> None:
    async def agent(_: Any) -> Any:
        await chat.ainvoke("plan")
        await asyncio.gather(asearch.ainvoke({"text": "x"}), search.ainvoke({"text": "y"}))
        with pytest.raises(ValueError, match="z"):
            await broken.ainvoke({"text": "z"})
        return await chat.ainvoke("use")

    asyncio.run(RunnableLambda(lambda _: None, agent).ainvoke("x"))
    found = interceptions(backend.recorded[1])
    assert sorted(found) == ["asearch", "broken", "search"]
    assert found["asearch"] >= 0.02
    assert found["search"] >= 0.02
    assert backend.dag() == {"plan": (), "use": ("plan",)}


def test_tool_of_a_hand_written_loop(chat: ChatOpenAI, backend: RecordingBackend) -> None:
    """Without a chain around it a tool is no program, and still reported."""
    chat.invoke("plan")
    search.invoke({"text": "x"})
    chat.invoke("use")
    assert backend.dag()["use"] == ("plan",)
    assert list(interceptions(backend.recorded[1])) == ["search"]


# Python 3.12's eager tasks


def test_eager_tasks_of_langgraph_are_linked(sdk: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The patch itself, on any Python: the thread is announced while the task is made, and attached to it."""
    from autellix._instrument.patches import Patches
    from autellix._programs.running import ATTRIBUTE, state
    from autellix_langchain import _patches

    seen: list[Any] = []

    class Task:
        pass

    def ensure_future(coro: Any, *, loop: Any, lazy: bool = True) -> Any:
        seen.append(getattr(state.local, "announced", None))
        return Task()

    module = types.ModuleType("langgraph._internal._future")
    module._ensure_future = ensure_future  # type: ignore[attr-defined]
    monkeypatch.setattr(sys.modules["asyncio"], "eager_task_factory", object(), raising=False)
    patches = Patches()
    _patches.instrument_eager_tasks(patches, module)
    task = module._ensure_future(None, loop=None, lazy=False)
    assert getattr(task, ATTRIBUTE) is seen[0] is not None
    assert not hasattr(module._ensure_future(None, loop=None, lazy=True), ATTRIBUTE)
    assert seen[1] is None
    patches.revert()
    assert module._ensure_future is ensure_future
