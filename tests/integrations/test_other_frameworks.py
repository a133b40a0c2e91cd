"""Frameworks that need no integration: they call through clients and tasks that the client follows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import autellix
from autellix.testing import RecordingBackend, tool_call

TOOLS = ("search", "calculate")
EXPECTED = {
    "question": (),
    "search asks": ("question",),
    "calculate asks": ("question",),
    "calculate found": ("calculate asks", "search asks"),
}


def script(body: dict[str, Any]) -> str | dict[str, Any]:
    """Ask for both tools at once, then answer; tools that call get a plain answer."""
    last = body["messages"][-1]
    if last["role"] == "user" and "question" in str(last["content"]):
        return tool_call(*((name, {}) for name in TOOLS))
    return "done"


def make_tools(client: Any) -> dict[str, Any]:
    """Return two tools which call the model themselves, at the same time."""
    both = asyncio.Barrier(2)

    async def run(name: str) -> str:
        await both.wait()
        messages: Any = [{"role": "user", "content": f"{name} asks"}]
        await client.chat.completions.create(model="m", messages=messages)
        return f"{name} found"

    async def search() -> str:
        """Search the web."""
        return await run("search")

    async def calculate() -> str:
        """Calculate something."""
        return await run("calculate")

    return {"search": search, "calculate": calculate}


def contents(backend: RecordingBackend) -> dict[str, tuple[str, ...] | None]:
    """The DAG; a framework may wrap the text of a message."""
    names: dict[str | None, str] = {}
    for call in backend.recorded:
        names[call.call_id] = next((name for name in EXPECTED if name in call.content), call.content)
    return {
        names[call.call_id]: tuple(sorted(names[parent] for parent in call.parents or ()))
        for call in backend.recorded
    }


async def test_openai_agents(backend: RecordingBackend) -> None:
    """One program: parallel tools are branches, and the answer depends on both."""
    agents: Any = pytest.importorskip("agents")
    import openai

    backend.answer = script
    agents.set_tracing_disabled(True)

    async with openai.AsyncOpenAI(base_url=backend.url, api_key="key") as client:
        model = agents.OpenAIChatCompletionsModel(model="m", openai_client=client)
        tools = [agents.function_tool(tool) for tool in make_tools(client).values()]
        agent = agents.Agent(name="researcher", instructions="Help.", model=model, tools=tools)
        with autellix.program("researcher"):
            result = await agents.Runner.run(agent, "question")
        assert result.final_output == "done"
    check(backend)


async def test_microsoft_agent_framework(backend: RecordingBackend) -> None:
    framework: Any = pytest.importorskip("agent_framework")
    clients: Any = pytest.importorskip("agent_framework_openai")
    import openai

    backend.answer = script

    async with openai.AsyncOpenAI(base_url=backend.url, api_key="key") as client:
        chat = clients.OpenAIChatCompletionClient(model="m", async_client=client)
        tools = list(make_tools(client).values())
        agent = framework.Agent(client=chat, name="researcher", instructions="Help.", tools=tools)
        with autellix.program("researcher"):
            answer = await agent.run("question")
        assert answer.text == "done"
    check(backend)


def check(backend: RecordingBackend) -> None:
    dag = contents(backend)
    assert dag == EXPECTED
    assert {call.program_name for call in backend.recorded} == {"researcher"}
    assert len(backend.programs()) == 1
    threads = {call.content: call.thread_id for call in backend.recorded}
    assert threads["search asks"] != threads["calculate asks"]
