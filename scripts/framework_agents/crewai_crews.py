import os

os.environ |= {
    "CREWAI_TRACING_ENABLED": "false",
    "CREWAI_DISABLE_TELEMETRY": "true",
    "OTEL_SDK_DISABLED": "true",
    "CREWAI_TESTING": "true",
}

import logging

from crewai import LLM, Agent, Crew, Task

logging.disable(logging.WARNING)


def make(url, task, **options):
    llm = LLM(model="openai/m", base_url=f"{url}/v1", api_key="key")
    left, right = (Agent(role=name, goal="g", backstory="b", llm=llm) for name in ("left", "right"))
    halves = [
        Task(description=f"{task} SUB left", expected_output="x", agent=left, async_execution=True),
        Task(description=f"{task} SUB right", expected_output="x", agent=right, async_execution=True),
    ]
    last = Task(description=f"{task} last", expected_output="x", agent=left, context=halves)
    return Crew(name="crew", agents=[left, right], tasks=[*halves, last], **options)


async def tasks(url, task):
    await make(url, task).kickoff_async()


def threads(url, task):
    make(url, task).kickoff()


async def streams(url, task):
    stream = await make(url, task, stream=True).akickoff()
    async for _ in stream:
        pass


IS_BATCH = True


def batch(url, tasks):
    make(url, "{task}").kickoff_for_each([{"task": task} for task in tasks])
