from agents import Agent, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)


def make(url):
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="key")
    model = OpenAIChatCompletionsModel(model="m", openai_client=client)
    left, right = (Agent(name=name, instructions="Help.", model=model) for name in ("left", "right"))
    tools = [left.as_tool("left", "Do the left half."), right.as_tool("right", "Do the right half.")]
    return Agent(name="main", instructions="Delegate.", model=model, tools=tools)


async def tasks(url, task):
    await Runner.run(make(url), task)


def threads(url, task):
    import asyncio

    asyncio.set_event_loop(asyncio.new_event_loop())
    Runner.run_sync(make(url), task)


async def streams(url, task):
    result = Runner.run_streamed(make(url), task)
    async for _ in result.stream_events():
        pass
