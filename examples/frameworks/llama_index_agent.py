"""LlamaIndex: `pip install llama-index-llms-openai-like git+https://github.com/autellix/autellix`."""

import asyncio

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai_like import OpenAILike

import autellix  # the only line to add


def population(city: str) -> str:
    """Return how many people live in a city."""
    return f"{city} has 3.7 million inhabitants."


async def main():
    """Ask one question."""
    address = {"api_base": "http://127.0.0.1:8000/v1", "api_key": "unused"}
    llm = OpenAILike(model="smollm2", is_chat_model=True, is_function_calling_model=True, **address)
    agent = FunctionAgent(name="geographer", tools=[population], llm=llm)
    print(await agent.run("How many people live in Berlin?"))


asyncio.run(main())
