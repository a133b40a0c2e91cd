from strands import Agent
from strands.models.openai import OpenAIModel
from strands.multiagent import GraphBuilder


def make(url, task):
    def agent(name, prompt):
        model = OpenAIModel(client_args={"base_url": f"{url}/v1", "api_key": "key"}, model_id="m")
        return Agent(model=model, name=name, system_prompt=f"{task} {prompt}", callback_handler=None)

    graph = GraphBuilder()
    for name, prompt in (("plan", "plan"), ("left", "SUB left"), ("right", "SUB right"), ("last", "last")):
        graph.add_node(agent(name, prompt), name)
    for edge in (("plan", "left"), ("plan", "right"), ("left", "last"), ("right", "last")):
        graph.add_edge(*edge)
    graph.set_entry_point("plan")
    return graph.build()


async def tasks(url, task):
    await make(url, task).invoke_async("go")


def threads(url, task):
    make(url, task)("go")


async def streams(url, task):
    async for _ in make(url, task).stream_async("go"):
        pass
