"""Map and reduce in LangGraph: `Send` starts one branch for each topic, and the summary waits for all."""

import operator
import os
from typing import Annotated, TypedDict

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

import autellix  # noqa: F401 - the only line to add

model = ChatOpenAI(
    base_url=os.environ.get("AUTELLIX_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("AUTELLIX_API_KEY", "unused"),
    model=os.environ.get("MODEL", "smollm2"),
    max_tokens=32,
)


class State(TypedDict, total=False):
    """What the graph's nodes share."""

    topics: list[str]
    notes: Annotated[list[str], operator.add]
    summary: str


def plan(_state: State):
    """Choose the topics; a real planner would read them from the answer."""
    model.invoke("Which topics belong to a report about the sea?")
    return {"topics": ["tides", "waves", "salt"]}


def fan_out(state: State):
    """Start one branch for each topic."""
    return [Send("research", {"topics": [topic]}) for topic in state["topics"]]


def research(state: State):
    """Write one note."""
    return {"notes": [model.invoke(f"One fact about {state['topics'][0]}.").text]}


def summarise(state: State):
    """Join the notes."""
    return {"summary": model.invoke(f"Summarise: {state['notes']}").text}


builder = StateGraph(State)
builder.add_node(plan).add_node(research).add_node(summarise)
builder.add_edge(START, "plan").add_conditional_edges("plan", fan_out, ["research"])
builder.add_edge("research", "summarise").add_edge("summarise", END)
print(builder.compile(name="report").invoke({})["summary"])
