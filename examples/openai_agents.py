"""The OpenAI Agents SDK: an agent with a tool. Needs `pip install openai-agents`."""

import asyncio
import os

import agents
from openai import AsyncOpenAI

import autellix

agents.set_tracing_disabled(True)  # its traces go to OpenAI otherwise


@agents.function_tool
def population(city: str) -> str:
    """Return how many people live in a city."""
    return f"{city} has 3.7 million inhabitants."


async def main():
    """Ask one question."""
    client = AsyncOpenAI(
        base_url=os.environ.get("AUTELLIX_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("AUTELLIX_API_KEY", "unused"),
    )
    model = agents.OpenAIChatCompletionsModel(model=os.environ.get("MODEL", "smollm2"), openai_client=client)
    agent = agents.Agent(name="geographer", instructions="Use the tool.", model=model, tools=[population])
    async with client, autellix.program("geographer"):
        result = await agents.Runner.run(agent, "How many people live in Berlin?")
    print(result.final_output)


asyncio.run(main())
