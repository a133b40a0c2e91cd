"""A LangGraph agent with tools of its own: it calls each of them, reads the results and answers."""

import os
from typing import Literal

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

import autellix  # noqa: F401 - the only line to add

Country = Literal["France", "Italy", "Spain"]
CAPITALS = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid"}
LANGUAGES = {"France": "French", "Italy": "Italian", "Spain": "Spanish"}


@tool
def capital(country: Country) -> str:
    """Return the capital of a country."""
    return f"The capital of {country} is {CAPITALS[country]}."


@tool
def language(country: Country) -> str:
    """Return the language of a country."""
    return f"People in {country} speak {LANGUAGES[country]}."


TOOLS = (capital, language)
QUESTION = "What is the capital of Italy, and which language do people speak there?"
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
    results = {message.name: message.content for message in state["messages"] if message.type == "tool"}
    missing = [tool.name for tool in TOOLS if tool.name not in results]
    if not missing:
        return {"messages": [model.invoke(f"{QUESTION} Use these facts: {' '.join(results.values())}")]}
    caller = model.bind_tools(TOOLS, tool_choice=missing[0], strict=True)
    return {"messages": [caller.invoke(state["messages"])]}


builder = StateGraph(MessagesState)
builder.add_node(think).add_node("tools", ToolNode(TOOLS))
builder.add_edge(START, "think").add_conditional_edges("think", tools_condition).add_edge("tools", "think")
agent = builder.compile(name="geographer")
for message in agent.invoke({"messages": [("user", QUESTION)]})["messages"]:
    calls = [f"{call['name']}({call['args']['country']})" for call in getattr(message, "tool_calls", ())]
    print(f"{message.type}: {message.text or ', '.join(calls)}")
