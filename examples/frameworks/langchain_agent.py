"""LangChain: `pip install langchain langchain-openai git+https://github.com/autellix/autellix`."""

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI

import autellix  # the only line to add


def population(city: str) -> str:
    """Return how many people live in a city."""
    return f"{city} has 3.7 million inhabitants."


model = ChatOpenAI(model="smollm2", base_url="http://127.0.0.1:8000/v1", api_key="unused")
agent = create_agent(model, [population], name="geographer")
result = agent.invoke({"messages": [("user", "How many people live in Berlin?")]})
print(result["messages"][-1].text)
