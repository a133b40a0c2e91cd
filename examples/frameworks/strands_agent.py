"""Strands: `pip install 'strands-agents[openai]' git+https://github.com/autellix/autellix`."""

from strands import Agent, tool
from strands.models.openai import OpenAIModel

import autellix  # the only line to add


@tool
def population(city: str) -> str:
    """Return how many people live in a city."""
    return f"{city} has 3.7 million inhabitants."


server = {"base_url": "http://127.0.0.1:8000/v1", "api_key": "unused"}
agent = Agent(
    model=OpenAIModel(client_args=server, model_id="smollm2"), name="geographer", tools=[population]
)
agent("How many people live in Berlin?")
