"""The OpenAI Agents SDK: `pip install openai-agents git+https://github.com/autellix/autellix`."""

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

import autellix  # the only line to add

set_tracing_disabled(True)  # its traces go to OpenAI otherwise


@function_tool
def population(city: str) -> str:
    """Return how many people live in a city."""
    return f"{city} has 3.7 million inhabitants."


client = AsyncOpenAI(base_url="http://127.0.0.1:8000/v1", api_key="unused")
model = OpenAIChatCompletionsModel(model="smollm2", openai_client=client)
agent = Agent(name="geographer", model=model, tools=[population])
print(Runner.run_sync(agent, "How many people live in Berlin?").final_output)
