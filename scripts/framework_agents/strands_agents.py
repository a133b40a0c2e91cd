from strands import Agent, tool
from strands.models.openai import OpenAIModel


def make(url):
    def agent(name, tools=()):
        model = OpenAIModel(client_args={"base_url": f"{url}/v1", "api_key": "key"}, model_id="m")
        return Agent(model=model, name=name, tools=list(tools), callback_handler=None)

    @tool
    def left(question: str) -> str:
        """Do the left half."""
        return str(agent("left")(question))

    @tool
    def right(question: str) -> str:
        """Do the right half."""
        return str(agent("right")(question))

    return agent("main", (left, right))


async def tasks(url, task):
    await make(url).invoke_async(task)


def threads(url, task):
    make(url)(task)


async def streams(url, task):
    async for _ in make(url).stream_async(task):
        pass
