from smolagents import OpenAIModel, ToolCallingAgent


def make(url):
    model = OpenAIModel(model_id="m", api_base=f"{url}/v1", api_key="key")
    halves = [
        ToolCallingAgent(tools=[], model=model, name=name, description="Do half.", verbosity_level=0)
        for name in ("left", "right")
    ]
    return ToolCallingAgent(tools=[], model=model, managed_agents=halves, verbosity_level=0)


def threads(url, task):
    make(url).run(task)


def streams(url, task):
    for _ in make(url).run(task, stream=True):
        pass
