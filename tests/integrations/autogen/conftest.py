"""What the tests of AutoGen share: a client for the recording backend, and agents that use it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from autellix.testing import RecordingBackend

if TYPE_CHECKING:
    from autogen_agentchat.agents import AssistantAgent
    from autogen_ext.models.openai import OpenAIChatCompletionClient


@pytest.fixture(scope="session")
def _frozen() -> Iterator[None]:
    """What has been imported is not looked at by each of the collections below."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _collect(sdk: None, _frozen: None) -> Iterator[None]:
    """Teams end their programs when they are collected: here, not in the next test."""
    yield
    gc.collect()


@pytest.fixture
def client(backend: RecordingBackend) -> OpenAIChatCompletionClient:
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    return OpenAIChatCompletionClient(
        model="recording",
        base_url=backend.url,
        api_key="key",
        model_info={
            "vision": False,
            "function_calling": True,
            "json_output": True,
            "structured_output": False,
            "family": "unknown",
            "multiple_system_messages": True,
        },
    )


@pytest.fixture
def play(client: OpenAIChatCompletionClient) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Run a coroutine in an event loop, and close the client's connections there."""

    async def to_end(work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await work
        finally:
            await client.close()

    return lambda work: asyncio.run(to_end(work))


@pytest.fixture
def agent(client: OpenAIChatCompletionClient) -> Callable[..., AssistantAgent]:
    """Make an agent whose calls are known by its name, which is its system message."""
    from autogen_agentchat.agents import AssistantAgent

    def make(name: str, **options: Any) -> AssistantAgent:
        return AssistantAgent(name, model_client=client, system_message=name, **options)

    return make
