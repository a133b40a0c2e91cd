from haystack import Pipeline
from haystack.dataclasses import ChatMessage
from haystack_agents import generator


def make(url):
    pipeline = Pipeline()
    for name in ("left", "right"):
        pipeline.add_component(name, generator(url))
    return pipeline


def inputs(task):
    return {name: {"messages": [ChatMessage.from_user(f"{task} SUB {name}")]} for name in ("left", "right")}


async def tasks(url, task):
    await make(url).run_async(inputs(task))


def threads(url, task):
    make(url).run(inputs(task))


async def streams(url, task):
    handle = make(url).stream(inputs(task))
    async for _ in handle:
        pass
