"""Haystack: `pip install haystack-ai git+https://github.com/autellix/autellix`."""

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import tool
from haystack.utils import Secret

import autellix  # the only line to add


@tool
def population(city: str) -> str:
    """Return how many people live in a city."""
    return f"{city} has 3.7 million inhabitants."


server = {"api_base_url": "http://127.0.0.1:8000/v1", "api_key": Secret.from_token("unused")}
agent = Agent(chat_generator=OpenAIChatGenerator(model="smollm2", **server), tools=[population])
print(agent.run([ChatMessage.from_user("How many people live in Berlin?")])["last_message"].text)
