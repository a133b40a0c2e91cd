"""A supervisor: it decides after every step who works next, two researchers at once and then a writer."""

import operator
from typing import Annotated, Any, TypedDict

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph

EXPECTED: dict[str, tuple[str, ...]] = {
    "Supervise: nothing is done.": (),
    "Research the history.": ("Supervise: nothing is done.",),
    "Research the market.": ("Supervise: nothing is done.",),
    "Supervise: history, market are done.": ("Research the history.", "Research the market."),
    "Write the report.": ("Supervise: history, market are done.",),
    "Supervise: history, market, report are done.": ("Write the report.",),
}


class State(TypedDict, total=False):
    done: Annotated[list[str], operator.add]


def build(model: ChatOpenAI) -> Any:
    def supervise(state: State) -> State:
        done = ", ".join(sorted(state.get("done", [])))
        model.invoke(f"Supervise: {done} are done." if done else "Supervise: nothing is done.")
        return {}

    def route(state: State) -> list[str]:
        done = state.get("done", [])
        if "report" in done:
            return [END]
        return ["writer"] if done else ["historian", "analyst"]

    def historian(state: State) -> State:
        model.invoke("Research the history.")
        return {"done": ["history"]}

    def analyst(state: State) -> State:
        model.invoke("Research the market.")
        return {"done": ["market"]}

    def writer(state: State) -> State:
        model.invoke("Write the report.")
        return {"done": ["report"]}

    graph = StateGraph(State)
    graph.add_node("supervisor", supervise)
    graph.add_edge(START, "supervisor")
    graph.add_conditional_edges("supervisor", route, ["historian", "analyst", "writer", END])
    for name, worker in (("historian", historian), ("analyst", analyst), ("writer", writer)):
        graph.add_node(name, worker)
        graph.add_edge(name, "supervisor")
    return graph.compile(name="supervisor")


def run(base_url: str, model: str) -> Any:
    # LangChain keeps its HTTP clients for good, and with them their connections.
    headers = {"Connection": "close"}
    chat = ChatOpenAI(
        base_url=base_url, api_key="key", model=model, max_tokens=8, temperature=0, default_headers=headers
    )
    return build(chat).invoke({"done": []})
