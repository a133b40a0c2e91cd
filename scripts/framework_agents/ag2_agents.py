import asyncio

from ag2 import Agent
from ag2.config import OpenAIConfig


def make(url):
    config = OpenAIConfig(model="m", base_url=f"{url}/v1", api_key="key")
    halves = [Agent(name, "Help.", config=config) for name in ("left", "right")]
    return Agent(
        "main", "Delegate.", config=config, tools=[half.as_tool(description="Do half.") for half in halves]
    )


async def tasks(url, task):
    await make(url).ask(task)


def threads(url, task):
    asyncio.run(tasks(url, task))


async def streams(url, task):
    async with make(url).run(task) as run:
        run.start()
        await run.result()
