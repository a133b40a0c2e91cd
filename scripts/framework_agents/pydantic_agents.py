import asyncio

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


def make(url):
    def model():
        return OpenAIChatModel("m", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="key"))

    halves = {name: Agent(model(), name=name) for name in ("left", "right")}
    main = Agent(model(), name="main")

    @main.tool_plain
    async def left(question: str) -> str:
        return (await halves["left"].run(question)).output

    @main.tool_plain
    async def right(question: str) -> str:
        return (await halves["right"].run(question)).output

    return main


async def tasks(url, task):
    await make(url).run(task)


def threads(url, task):
    asyncio.set_event_loop(asyncio.new_event_loop())
    make(url).run_sync(task)


async def streams(url, task):
    async with make(url).run_stream(task) as result:
        await result.get_output()
