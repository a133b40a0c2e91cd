"""The OpenAI Agents SDK: one agent looks a figure up with a tool, and another one writes the answer."""

import asyncio
import os
from typing import Literal

import agents
from openai import AsyncOpenAI

import autellix

agents.set_tracing_disabled(True)  # its traces go to OpenAI otherwise
QUESTION = "How many people live in Berlin?"
MILLIONS = {"Berlin": 3.7, "Paris": 2.1, "Rome": 2.7}


@agents.function_tool  # strict: the engine generates only arguments that fit the schema
def population(city: Literal["Berlin", "Paris", "Rome"]) -> str:
    """Return how many people live in a city."""
    return f"{city} has {MILLIONS[city]} million inhabitants."


async def main():
    """Ask one question."""
    client = AsyncOpenAI(
        base_url=os.environ.get("AUTELLIX_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("AUTELLIX_API_KEY", "unused"),
    )
    model = agents.OpenAIChatCompletionsModel(model=os.environ.get("MODEL", "smollm2"), openai_client=client)
    geographer = agents.Agent(
        name="geographer",
        model=model,
        tools=[population],
        # A small model needs the name of the tool, and would call it again and again.
        model_settings=agents.ModelSettings(tool_choice="population", max_tokens=64, temperature=0),
        tool_use_behavior="stop_on_first_tool",
    )
    settings = agents.ModelSettings(max_tokens=64, temperature=0)
    writer = agents.Agent(name="writer", model=model, model_settings=settings)
    async with client, autellix.program("geographer"):
        found = await agents.Runner.run(geographer, QUESTION)
        result = await agents.Runner.run(writer, f"{QUESTION}\n{found.final_output}\nSummarise.")
    print(result.final_output)


asyncio.run(main())
