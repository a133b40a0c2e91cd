import asyncio

from agent_framework import Agent
from agent_framework.openai import OpenAIChatCompletionClient


def make(url):
    def client():
        return OpenAIChatCompletionClient(model="m", base_url=f"{url}/v1", api_key="key")

    halves = [Agent(client(), "Help.", name=name, description="Do half.") for name in ("left", "right")]
    return Agent(client(), "Delegate.", name="main", tools=[half.as_tool() for half in halves])


async def tasks(url, task):
    await make(url).run(task)


def threads(url, task):
    asyncio.run(tasks(url, task))


async def streams(url, task):
    async for _ in make(url).run(task, stream=True):
        pass
