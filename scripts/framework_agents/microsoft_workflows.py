import asyncio

from agent_framework import Agent
from agent_framework.openai import OpenAIChatCompletionClient
from agent_framework.orchestrations import ConcurrentBuilder


def make(url, task):
    def agent(name):
        client = OpenAIChatCompletionClient(model="m", base_url=f"{url}/v1", api_key="key")
        return Agent(client, f"{task} SUB {name}", name=name)

    return ConcurrentBuilder(participants=[agent("left"), agent("right")]).build()


async def tasks(url, task):
    await make(url, task).run(task)


def threads(url, task):
    asyncio.run(tasks(url, task))


async def streams(url, task):
    async for _ in make(url, task).run(task, stream=True):
        pass
