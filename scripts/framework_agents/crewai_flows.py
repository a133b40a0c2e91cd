import crewai_crews
from crewai import LLM
from crewai.flow.flow import Flow, and_, listen, start


def make(url, task):
    llm = LLM(model="openai/m", base_url=f"{url}/v1", api_key="key")

    class Halves(Flow):
        @start()
        async def plan(self):
            return await llm.acall(f"{task} plan")

        @listen(plan)
        async def left(self):
            return await llm.acall(f"{task} SUB left")

        @listen(plan)
        async def right(self):
            return await llm.acall(f"{task} SUB right")

        @listen(and_(left, right))
        async def last(self):
            return await llm.acall(f"{task} last")

    return Halves(suppress_flow_events=True)


async def tasks(url, task):
    await make(url, task).kickoff_async()


def threads(url, task):
    make(url, task).kickoff()


__all__ = ["crewai_crews", "tasks", "threads"]
