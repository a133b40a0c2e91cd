"""Google ADK: `pip install google-adk litellm git+https://github.com/autellix/autellix`."""

import asyncio

from google.adk.agents import LlmAgent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner

import autellix  # the only line to add


def population(city: str) -> str:
    """Return how many people live in a city."""
    return f"{city} has 3.7 million inhabitants."


model = LiteLlm(model="openai/smollm2", api_base="http://127.0.0.1:8000/v1", api_key="unused")
agent = LlmAgent(name="geographer", model=model, tools=[population])
asyncio.run(InMemoryRunner(agent=agent).run_debug("How many people live in Berlin?"))
