import asyncio

from openai import AsyncOpenAI
from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion


def make(url):
    def service():
        client = AsyncOpenAI(base_url=f"{url}/v1", api_key="key")
        return OpenAIChatCompletion(ai_model_id="m", async_client=client)

    halves = [
        ChatCompletionAgent(service=service(), name=name, description="Do half.", instructions="Help.")
        for name in ("left", "right")
    ]
    return ChatCompletionAgent(service=service(), name="main", instructions="Delegate.", plugins=halves)


async def tasks(url, task):
    await make(url).get_response(task)


def threads(url, task):
    asyncio.run(tasks(url, task))


async def streams(url, task):
    async for _ in make(url).invoke_stream(task):
        pass
