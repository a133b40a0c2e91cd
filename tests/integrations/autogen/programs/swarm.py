"""A swarm whose agents hand a task on: reception, triage, and the one who answers."""

import asyncio
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import TaskResult
from autogen_agentchat.conditions import TextMessageTermination
from autogen_agentchat.teams import Swarm
from autogen_core.models import CreateResult
from autogen_ext.models.openai import OpenAIChatCompletionClient

EXPECTED: dict[str, tuple[str, ...]] = {
    "reception": (),
    "triage": ("reception",),
    "expert": ("triage",),
}


class HandingOn(OpenAIChatCompletionClient):
    """A client for a model that cannot choose: where there is a tool, it is told to call it."""

    async def create(self, messages: Any, *, tools: Any = (), **kwargs: Any) -> CreateResult:
        choice = {"tool_choice": tools[0]} if tools else {}
        return await super().create(messages, tools=tools, **{**kwargs, **choice})


async def talk(base_url: str, model: str) -> TaskResult:
    client = HandingOn(
        model=model,
        base_url=base_url,
        api_key="key",
        max_tokens=32,
        temperature=0,
        model_info={
            "vision": False,
            "function_calling": True,
            "json_output": False,
            "structured_output": False,
            "family": "unknown",
        },
    )
    team = Swarm(
        [
            AssistantAgent("reception", model_client=client, handoffs=["triage"]),
            AssistantAgent("triage", model_client=client, handoffs=["expert"]),
            AssistantAgent("expert", model_client=client),
        ],
        termination_condition=TextMessageTermination("expert"),
    )
    try:
        return await team.run(task="My printer is on fire.")
    finally:
        await client.close()


def run(base_url: str, model: str) -> TaskResult:
    return asyncio.run(talk(base_url, model))
