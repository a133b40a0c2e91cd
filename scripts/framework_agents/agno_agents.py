from agno.agent import Agent
from agno.models.openai.like import OpenAILike


def make(url):
    def model():
        return OpenAILike(id="m", base_url=f"{url}/v1", api_key="key")

    async def left(question: str) -> str:
        """Do the left half."""
        return (await Agent(name="left", model=model(), telemetry=False).arun(question)).content

    async def right(question: str) -> str:
        """Do the right half."""
        return (await Agent(name="right", model=model(), telemetry=False).arun(question)).content

    return Agent(name="main", model=model(), tools=[left, right], telemetry=False)


async def tasks(url, task):
    await make(url).arun(task)


def make_sync(url):
    def half(name):
        def run(question: str) -> str:
            """Do half."""
            model = OpenAILike(id="m", base_url=f"{url}/v1", api_key="key")
            return Agent(name=name, model=model, telemetry=False).run(question).content

        run.__name__ = name
        return run

    model = OpenAILike(id="m", base_url=f"{url}/v1", api_key="key")
    return Agent(name="main", model=model, tools=[half("left"), half("right")], telemetry=False)


def threads(url, task):
    make_sync(url).run(task)


async def streams(url, task):
    async for _ in make(url).arun(task, stream=True):
        pass
