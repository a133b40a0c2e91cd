"""Agents on AutoGen's core runtime, without teams: messages order the calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from tests.integrations.autogen.labels import dag

import autellix
from autellix.testing import RecordingBackend

pytest.importorskip("autogen_core")
pytest.importorskip("autogen_ext.models.openai")

from autogen_core import (
    AgentId,
    CancellationToken,
    DefaultTopicId,
    MessageContext,
    RoutedAgent,
    SingleThreadedAgentRuntime,
    default_subscription,
    message_handler,
)
from autogen_core.models import SystemMessage

if TYPE_CHECKING:
    from autogen_ext.models.openai import OpenAIChatCompletionClient

Play = Callable[[Coroutine[Any, Any, Any]], Any]


@dataclass
class Ask:
    text: str


@dataclass
class Tell:
    text: str


class Worker(RoutedAgent):
    """Answers with one call."""

    def __init__(self, client: Any) -> None:
        super().__init__("worker")
        self.client = client

    @message_handler
    async def on_ask(self, message: Ask, ctx: MessageContext) -> Tell:
        await self.client.create(
            [SystemMessage(content=message.text)], cancellation_token=ctx.cancellation_token
        )
        return Tell(text=message.text)


class Chief(RoutedAgent):
    """Asks two workers at once, then a third, then calls itself."""

    def __init__(self, client: Any) -> None:
        super().__init__("chief")
        self.client = client

    @message_handler
    async def on_ask(self, message: Ask, ctx: MessageContext) -> Tell:
        await self.client.create([SystemMessage(content="plan")])
        await asyncio.gather(
            self.send_message(Ask("left"), AgentId("worker", "left")),
            self.send_message(Ask("right"), AgentId("worker", "right")),
        )
        await self.send_message(Ask("then"), AgentId("worker", "left"))
        # In a task of its own, which has the agent's name all the same.
        await asyncio.create_task(self.client.create([SystemMessage(content="answer")]))
        return Tell(text="done")


@default_subscription
class Listener(RoutedAgent):
    """Makes a call for each message that is published."""

    def __init__(self, client: Any) -> None:
        super().__init__("listener")
        self.client = client

    @message_handler
    async def on_tell(self, message: Tell, ctx: MessageContext) -> None:
        await self.client.create([SystemMessage(content=f"{self.id.type}-{message.text}")])


async def serve(client: Any) -> SingleThreadedAgentRuntime:
    runtime = SingleThreadedAgentRuntime()
    await Worker.register(runtime, "worker", lambda: Worker(client))
    await Chief.register(runtime, "chief", lambda: Chief(client))
    runtime.start()
    return runtime


def test_replies_join(backend: RecordingBackend, client: OpenAIChatCompletionClient, play: Play) -> None:
    async def work() -> None:
        runtime = await serve(client)
        with autellix.program("core"):
            await runtime.send_message(Ask("go"), AgentId("chief", "default"))
            await client.create([SystemMessage(content="after")])
        await runtime.stop_when_idle()

    play(work())
    assert dag(backend.recorded) == {
        "plan1": (),
        "left1": ("plan1",),
        "right1": ("plan1",),
        "then1": ("left1", "right1"),
        "answer1": ("then1",),
        "after1": ("answer1",),
    }
    assert {call.program_name for call in backend.recorded} == {"core"}
    agents = {call.content: call.thread_name for call in backend.recorded}
    assert agents == {
        "plan": "chief",
        "left": "worker",
        "right": "worker",
        "then": "worker",
        "answer": "chief",
        "after": None,
    }


def test_published_messages_fork(
    backend: RecordingBackend, client: OpenAIChatCompletionClient, play: Play
) -> None:
    """Each listener is a thread; its second message comes after its first."""

    async def work() -> None:
        runtime = SingleThreadedAgentRuntime()
        for name in ("x", "y"):
            await Listener.register(runtime, name, lambda: Listener(client))
        runtime.start()
        with autellix.program("core"):
            await client.create([SystemMessage(content="first")])
            await runtime.publish_message(Tell("one"), DefaultTopicId())
            await runtime.stop_when_idle()
            runtime.start()
            await runtime.publish_message(Tell("two"), DefaultTopicId())
            await runtime.stop_when_idle()

    play(work())
    assert dag(backend.recorded) == {
        "first1": (),
        "x-one1": ("first1",),
        "y-one1": ("first1",),
        "x-two1": ("x-one1",),
        "y-two1": ("y-one1",),
    }
    threads = {call.content: call.thread_id for call in backend.recorded}
    assert threads["x-one"] == threads["x-two"] != threads["y-one"] == threads["y-two"]


def test_linked_tasks_side_by_side_are_threads(
    backend: RecordingBackend, client: OpenAIChatCompletionClient, play: Play
) -> None:
    """One goes on as the thread of its maker, but not two at once."""

    async def work() -> None:
        token = CancellationToken()

        async def ask(text: str) -> None:
            await client.create([SystemMessage(content=text)], cancellation_token=token)

        with autellix.program("core"):
            await asyncio.gather(
                *(token.link_future(asyncio.ensure_future(ask(text))) for text in ("x", "y", "z"))
            )
            await ask("last")

    play(work())
    assert dag(backend.recorded) == {"x1": (), "y1": (), "z1": (), "last1": ("x1", "y1", "z1")}
    threads = [call.thread_id for call in sorted(backend.recorded, key=lambda call: call.content)]
    assert len(set(threads)) == 3
    assert threads[0] == threads[1]


def test_one_runtime_serves_many_programs(
    backend: RecordingBackend, client: OpenAIChatCompletionClient, play: Play
) -> None:
    async def request(runtime: SingleThreadedAgentRuntime, number: int) -> None:
        with autellix.program("request", id=f"request-{number}"):
            for step in range(3):
                await runtime.send_message(Ask(f"{number}-{step}"), AgentId("worker", "default"))

    async def work() -> None:
        runtime = await serve(client)
        await asyncio.gather(*(request(runtime, number) for number in range(5)))
        await runtime.stop_when_idle()

    play(work())
    expected: dict[str, tuple[str, ...]] = {}
    for number in range(5):
        expected |= {f"{number}-0": (), f"{number}-1": (f"{number}-0",), f"{number}-2": (f"{number}-1",)}
    assert backend.dag() == expected
    for call in backend.recorded:
        assert call.program_id == f"request-{call.content[0]}"


def test_an_error_of_a_handler_is_its_senders(
    backend: RecordingBackend, client: OpenAIChatCompletionClient, play: Play
) -> None:
    async def work() -> None:
        runtime = await serve(client)
        backend.statuses = [400]
        with autellix.program("core"):
            with pytest.raises(Exception, match="scripted"):
                await runtime.send_message(Ask("bad"), AgentId("worker", "default"))
            await client.create([SystemMessage(content="next")])
        await runtime.stop_when_idle()

    play(work())
    assert dag(backend.recorded) == {"bad1": (), "next1": ("bad1",)}
