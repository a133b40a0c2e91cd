"""Microsoft Agent Framework: `pip install agent-framework-openai git+https://github.com/autellix/autellix`."""

import asyncio

from agent_framework import Agent
from agent_framework.openai import OpenAIChatCompletionClient

import autellix  # the only line to add


def population(city: str) -> str:
    """Return how many people live in a city."""
    return f"{city} has 3.7 million inhabitants."


client = OpenAIChatCompletionClient(model="smollm2", base_url="http://127.0.0.1:8000/v1", api_key="unused")
agent = Agent(client, name="geographer", tools=[population])
print(asyncio.run(agent.run("How many people live in Berlin?")))
