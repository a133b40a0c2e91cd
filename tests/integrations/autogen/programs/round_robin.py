"""A writer and a critic take turns, twice each."""

import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import TaskResult
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient

EXPECTED: dict[str, tuple[str, ...]] = {
    "writer 1": (),
    "critic 1": ("writer 1",),
    "writer 2": ("critic 1",),
    "critic 2": ("writer 2",),
}


async def talk(base_url: str, model: str) -> TaskResult:
    client = OpenAIChatCompletionClient(
        model=model,
        base_url=base_url,
        api_key="key",
        max_tokens=8,
        temperature=0,
        model_info={
            "vision": False,
            "function_calling": True,
            "json_output": False,
            "structured_output": False,
            "family": "unknown",
        },
    )
    team = RoundRobinGroupChat(
        [
            AssistantAgent("writer", model_client=client, system_message="Write a haiku."),
            AssistantAgent("critic", model_client=client, system_message="Criticise it."),
        ],
        # The task counts as a message, too.
        termination_condition=MaxMessageTermination(5),
    )
    try:
        return await team.run(task="A haiku on autumn.")
    finally:
        await client.close()


def run(base_url: str, model: str) -> TaskResult:
    return asyncio.run(talk(base_url, model))
