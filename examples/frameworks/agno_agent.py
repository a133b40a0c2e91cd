"""Agno: `pip install agno openai git+https://github.com/autellix/autellix`."""

from agno.agent import Agent
from agno.models.openai.like import OpenAILike

import autellix  # the only line to add


def population(city: str) -> str:
    """Return how many people live in a city."""
    return f"{city} has 3.7 million inhabitants."


model = OpenAILike(id="smollm2", base_url="http://127.0.0.1:8000/v1", api_key="unused")
agent = Agent(name="geographer", model=model, tools=[population], telemetry=False)
print(agent.run("How many people live in Berlin?").content)
