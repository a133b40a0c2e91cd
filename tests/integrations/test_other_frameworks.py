"""Frameworks that need no integration: their runs are programs, and the client follows calls and tasks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest

import autellix
from autellix._instrument.switch import missing_methods
from autellix.testing import RecordingBackend, tool_call

# These libraries warn, and leave clients open.
pytestmark = pytest.mark.filterwarnings("ignore")
TOOLS = ("search", "calculate")
EXPECTED = {
    "question": (),
    "search asks": ("question",),
    "calculate asks": ("question",),
    "found": ("calculate asks", "search asks"),
}


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """Collect what a library has left open here, where its warnings are ignored."""
    yield
    gc.collect()


@pytest.fixture
async def client(backend: RecordingBackend) -> AsyncIterator[Any]:
    """The client of the tools, where the agent's calls are scripted."""
    backend.answer = script
    async with openai.AsyncOpenAI(base_url=backend.url, api_key="key") as made:
        yield made


@pytest.fixture
def sync_client(backend: RecordingBackend) -> Iterator[Any]:
    backend.answer = script
    with openai.OpenAI(base_url=backend.url, api_key="key") as made:
        yield made


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


def make_sync_tools(client: Any) -> dict[str, Callable[[], str]]:
    """Return the same tools for frameworks that run them in threads."""
    both = threading.Barrier(2)

    def run(name: str) -> str:
        both.wait(60)
        messages: Any = [{"role": "user", "content": f"{name} asks"}]
        client.chat.completions.create(model="m", messages=messages)
        return f"{name} found"

    def search() -> str:
        """Search the web."""
        return run("search")

    def calculate() -> str:
        """Calculate something."""
        return run("calculate")

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


async def test_openai_agents(backend: RecordingBackend, client: Any) -> None:
    """One program: parallel tools are branches, and the answer depends on both."""
    agents: Any = pytest.importorskip("agents")
    agents.set_tracing_disabled(True)
    model = agents.OpenAIChatCompletionsModel(model="m", openai_client=client)
    tools = [agents.function_tool(tool) for tool in make_tools(client).values()]
    agent = agents.Agent(name="researcher", instructions="Help.", model=model, tools=tools)
    with researching(backend, "researcher"):
        result = await agents.Runner.run(agent, "question")
    assert result.final_output == "done"


@pytest.mark.parametrize("has_scope", [True, False])
async def test_a_streamed_run_of_openai_agents_that_is_read_later(
    backend: RecordingBackend, client: Any, has_scope: bool
) -> None:
    """It goes on in a task, after the scope around its start, and after the call that starts it."""
    agents: Any = pytest.importorskip("agents")
    agents.set_tracing_disabled(True)
    model = agents.OpenAIChatCompletionsModel(model="m", openai_client=client)
    tools = [agents.function_tool(tool) for tool in make_tools(client).values()]
    agent = agents.Agent(name="researcher", instructions="Help.", model=model, tools=tools)
    with researching(backend, "researcher"):
        with autellix.program("researcher") if has_scope else contextlib.nullcontext():
            result = agents.Runner.run_streamed(agent, "question")
        async for _ in result.stream_events():
            pass
    assert result.final_output == "done"
    await asyncio.to_thread(backend.wait_for, "DELETE", "/programs/")


async def test_microsoft_agent_framework(backend: RecordingBackend, client: Any) -> None:
    framework: Any = pytest.importorskip("agent_framework")
    clients: Any = pytest.importorskip("agent_framework_openai")
    chat = clients.OpenAIChatCompletionClient(model="m", async_client=client)
    tools = list(make_tools(client).values())
    agent = framework.Agent(client=chat, name="researcher", instructions="Help.", tools=tools)
    with researching(backend, "researcher"):
        answer = await agent.run("question")
    assert answer.text == "done"


async def test_pydantic_ai(backend: RecordingBackend, client: Any) -> None:
    pydantic_ai: Any = pytest.importorskip("pydantic_ai")
    models: Any = pytest.importorskip("pydantic_ai.models.openai")
    providers: Any = pytest.importorskip("pydantic_ai.providers.openai")
    model = models.OpenAIChatModel("m", provider=providers.OpenAIProvider(openai_client=client))
    agent = pydantic_ai.Agent(model, tools=list(make_tools(client).values()))
    with researching(backend, "agent"):
        result = await agent.run("question")
    assert result.output == "done"


@pytest.mark.parametrize("has_scope", [True, False])
async def test_llama_index(backend: RecordingBackend, client: Any, has_scope: bool) -> None:
    """Its handler is awaited after the scope around its start, and after the call that starts it."""
    workflow: Any = pytest.importorskip("llama_index.core.agent.workflow")
    openai_like: Any = pytest.importorskip("llama_index.llms.openai_like")
    llm = openai_like.OpenAILike(
        model="m",
        api_base=backend.url,
        api_key="key",
        is_chat_model=True,
        is_function_calling_model=True,
        max_retries=0,
    )

    tools = list(make_tools(client).values())
    agent = workflow.FunctionAgent(tools=tools, llm=llm, streaming=False)
    with researching(backend, "researcher" if has_scope else "Agent"):
        with autellix.program("researcher") if has_scope else contextlib.nullcontext():
            handler = agent.run("question")
        assert str(await handler) == "done"
    await asyncio.to_thread(backend.wait_for, "DELETE", "/programs/")


async def test_agno(backend: RecordingBackend, client: Any) -> None:
    agents: Any = pytest.importorskip("agno.agent")
    models: Any = pytest.importorskip("agno.models.openai.like")
    model = models.OpenAILike(id="m", base_url=backend.url, api_key="key")
    agent = agents.Agent(model=model, tools=list(make_tools(client).values()), telemetry=False)
    with researching(backend, "Agent"):
        answer = await agent.arun("question")
    assert answer.content == "done"


def test_haystack(backend: RecordingBackend, sync_client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAYSTACK_TELEMETRY_ENABLED", "False")
    agents: Any = pytest.importorskip("haystack.components.agents")
    chat: Any = pytest.importorskip("haystack.components.generators.chat")
    messages: Any = pytest.importorskip("haystack.dataclasses")
    tools: Any = pytest.importorskip("haystack.tools")
    secrets: Any = pytest.importorskip("haystack.utils")
    key = secrets.Secret.from_token("key")
    generator = chat.OpenAIChatGenerator(model="m", api_base_url=backend.url, api_key=key)
    functions = [tools.create_tool_from_function(tool) for tool in make_sync_tools(sync_client).values()]
    agent = agents.Agent(chat_generator=generator, tools=functions)
    with researching(backend, "Agent"):
        result = agent.run(messages=[messages.ChatMessage.from_user("question")])
    assert result["messages"][-1].text == "done"


def test_smolagents(backend: RecordingBackend, sync_client: Any) -> None:
    """Its agents end by a tool of their own, and ask in a message that also lists the tools."""
    smolagents: Any = pytest.importorskip("smolagents")

    def answer(body: dict[str, Any]) -> str | dict[str, Any]:
        if "tools" not in body:
            return "done"
        has_answers = any(message["role"] in ("tool", "tool-response") for message in body["messages"])
        found = has_answers or "found" in str(body["messages"][-1]["content"])
        return (
            tool_call(("final_answer", {"answer": "done"})) if found else tool_call(*((n, {}) for n in TOOLS))
        )

    backend.answer = answer
    model = smolagents.OpenAIServerModel("m", api_base=backend.url, api_key="key")
    tools = [smolagents.tool(tool) for tool in make_sync_tools(sync_client).values()]
    agent = smolagents.ToolCallingAgent(tools=tools, model=model, verbosity_level=0)
    with researching(backend, "ToolCallingAgent"):
        assert agent.run("question") == "done"


@contextmanager
def researching(backend: RecordingBackend, name: str) -> Iterator[None]:
    """Run an agent, which is a program with nothing but the client, and check what the backend has got."""
    yield
    assert contents(backend) == EXPECTED
    assert {call.program_name for call in backend.recorded} == {name}
    assert len(backend.programs()) == 1
    threads = {call.content: call.thread_id for call in backend.recorded}
    assert threads["search asks"] != threads["calculate asks"]
    assert missing_methods() == []
