"""A team of AutoGen agents that take turns: one program, with a thread for each agent."""

import asyncio
import os

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat

import autellix  # noqa: F401 - the only line to add
from autellix_autogen import AutellixChatCompletionClient


async def main():
    """Let a writer and an editor take two turns each."""
    client = AutellixChatCompletionClient(  # its address is that of AUTELLIX_BASE_URL
        model=os.environ.get("MODEL", "smollm2"),
        api_key=os.environ.get("AUTELLIX_API_KEY", "unused"),
        max_tokens=32,
    )
    agents = [AssistantAgent(name, client) for name in ("writer", "editor")]
    team = RoundRobinGroupChat(agents, name="essay", termination_condition=MaxMessageTermination(5))
    result = await team.run(task="Write about the sea.")
    for message in result.messages:
        print(f"{message.source}: {message.to_text()}")
    await client.close()


asyncio.run(main())
