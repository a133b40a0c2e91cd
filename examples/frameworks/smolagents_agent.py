"""smolagents: `pip install 'smolagents[openai]' git+https://github.com/autellix/autellix`."""

from smolagents import OpenAIModel, ToolCallingAgent, tool

import autellix  # the only line to add


@tool
def population(city: str) -> str:
    """Return how many people live in a city.

    Args:
        city: Its name.
    """
    return f"{city} has 3.7 million inhabitants."


model = OpenAIModel(model_id="smollm2", api_base="http://127.0.0.1:8000/v1", api_key="unused")
print(ToolCallingAgent(tools=[population], model=model).run("How many people live in Berlin?"))
