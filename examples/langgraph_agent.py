"""A LangGraph agent with tools of its own: it calls each of them, reads the results and answers."""

import os
from typing import Literal

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

import autellix  # noqa: F401 - the only line to add

City = Literal["Berlin", "Paris", "Rome"]
MILLIONS = {"Berlin": 3.7, "Paris": 2.1, "Rome": 2.7}
SQUARE_KM = {"Berlin": 891, "Paris": 105, "Rome": 1285}


@tool
def population(city: City) -> str:
    """Return how many people live in a city."""
    return f"{city} has {MILLIONS[city]} million inhabitants."


@tool
def area(city: City) -> str:
    """Return how large a city is."""
    return f"{city} covers {SQUARE_KM[city]} square kilometres."


TOOLS = (population, area)
model = ChatOpenAI(
    base_url=os.environ.get("AUTELLIX_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("AUTELLIX_API_KEY", "unused"),
    model=os.environ.get("MODEL", "smollm2"),
    max_tokens=64,
    temperature=0,
)


def think(state: MessagesState):
    """Call the next tool, then answer.

    A large model chooses by itself. A small one needs the name of the tool, and `strict`, by which the engine
    generates only arguments that fit the tool's schema.
    """
    called = {message.name for message in state["messages"] if message.type == "tool"}
    waiting = [tool.name for tool in TOOLS if tool.name not in called]
    if not waiting:
        return {"messages": [model.invoke(state["messages"])]}
    caller = model.bind_tools(TOOLS, tool_choice=waiting[0], strict=True)
    return {"messages": [caller.invoke(state["messages"])]}


builder = StateGraph(MessagesState)
builder.add_node(think).add_node("tools", ToolNode(TOOLS))
builder.add_edge(START, "think").add_conditional_edges("think", tools_condition).add_edge("tools", "think")
agent = builder.compile(name="geographer")
question = "How many people live in Berlin, and how large is it?"
for message in agent.invoke({"messages": [("user", question)]})["messages"]:
    message.pretty_print()
