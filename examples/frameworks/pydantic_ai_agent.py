"""Pydantic AI: `pip install 'pydantic-ai-slim[openai]' git+https://github.com/autellix/autellix`."""

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import autellix  # the only line to add

provider = OpenAIProvider(base_url="http://127.0.0.1:8000/v1", api_key="unused")
agent = Agent(OpenAIChatModel("smollm2", provider=provider), name="geographer")


@agent.tool_plain
def population(city: str) -> str:
    """Return how many people live in a city."""
    return f"{city} has 3.7 million inhabitants."


print(agent.run_sync("How many people live in Berlin?").output)
