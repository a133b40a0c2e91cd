"""AG2: `pip install 'ag2[openai]' git+https://github.com/autellix/autellix`."""

import asyncio

from ag2 import Agent
from ag2.config import OpenAIConfig

import autellix  # the only line to add


def population(city: str) -> str:
    """Return how many people live in a city."""
    return f"{city} has 3.7 million inhabitants."


config = OpenAIConfig(model="smollm2", base_url="http://127.0.0.1:8000/v1", api_key="unused")
agent = Agent("geographer", "Use the tool.", config=config, tools=[population])
print(asyncio.run(agent.ask("How many people live in Berlin?")).body)
