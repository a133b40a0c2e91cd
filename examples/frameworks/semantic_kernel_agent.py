"""Semantic Kernel: `pip install semantic-kernel git+https://github.com/autellix/autellix`."""

import asyncio

from openai import AsyncOpenAI
from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion
from semantic_kernel.functions import kernel_function

import autellix  # the only line to add


class Facts:
    """What the agent can look up."""

    @kernel_function
    def population(self, city: str) -> str:
        """Return how many people live in a city."""
        return f"{city} has 3.7 million inhabitants."


client = AsyncOpenAI(base_url="http://127.0.0.1:8000/v1", api_key="unused")
service = OpenAIChatCompletion(ai_model_id="smollm2", async_client=client)
agent = ChatCompletionAgent(service=service, name="geographer", plugins=[Facts()])
print(asyncio.run(agent.get_response("How many people live in Berlin?")))
