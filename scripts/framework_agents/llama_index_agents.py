import asyncio

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai_like import OpenAILike


def make(url, streaming=False):
    def llm():
        return OpenAILike(
            model="m",
            api_base=f"{url}/v1",
            api_key="key",
            is_chat_model=True,
            is_function_calling_model=True,
            max_retries=0,
        )

    halves = {
        name: FunctionAgent(name=name, tools=[], llm=llm(), streaming=streaming) for name in ("left", "right")
    }

    async def left(question: str) -> str:
        """Do the left half."""
        return str(await halves["left"].run(question))

    async def right(question: str) -> str:
        """Do the right half."""
        return str(await halves["right"].run(question))

    return FunctionAgent(name="main", tools=[left, right], llm=llm(), streaming=streaming)


async def tasks(url, task):
    await make(url).run(task)


def threads(url, task):
    asyncio.run(tasks(url, task))


async def streams(url, task):
    handler = make(url, streaming=True).run(task)
    async for _ in handler.stream_events():
        pass
    await handler
