"""Map-reduce: one call plans, one call per subject by `Send`, one call takes the results together."""

import operator
from typing import Annotated, Any, TypedDict

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

SUBJECTS = ("cats", "dogs", "owls", "bees")
EXPECTED: dict[str, tuple[str, ...]] = {
    "Plan four jokes.": (),
    **{f"Tell a joke about {subject}.": ("Plan four jokes.",) for subject in SUBJECTS},
    "Choose the best joke.": tuple(sorted(f"Tell a joke about {subject}." for subject in SUBJECTS)),
}


class State(TypedDict, total=False):
    plan: str
    jokes: Annotated[list[str], operator.add]
    best: str


class Item(TypedDict):
    subject: str


def build(model: ChatOpenAI) -> Any:
    def plan(state: State) -> State:
        return {"plan": str(model.invoke("Plan four jokes.").content)}

    def scatter(state: State) -> list[Send]:
        return [Send("write", {"subject": subject}) for subject in SUBJECTS]

    def write(item: Item) -> State:
        return {"jokes": [str(model.invoke(f"Tell a joke about {item['subject']}.").content)]}

    def choose(state: State) -> State:
        notes = "\n".join(state["jokes"])
        reply = model.invoke([("system", f"The jokes:\n{notes}"), ("human", "Choose the best joke.")])
        return {"best": str(reply.content)}

    graph = StateGraph(State)
    graph.add_node("plan", plan)
    graph.add_node("write", write)
    graph.add_node("choose", choose)
    graph.add_edge(START, "plan")
    graph.add_conditional_edges("plan", scatter, ["write"])
    graph.add_edge("write", "choose")
    graph.add_edge("choose", END)
    return graph.compile(name="map-reduce")


def run(base_url: str, model: str) -> Any:
    # LangChain keeps its HTTP clients for good, and with them their connections.
    headers = {"Connection": "close"}
    chat = ChatOpenAI(
        base_url=base_url, api_key="key", model=model, max_tokens=8, temperature=0, default_headers=headers
    )
    return build(chat).invoke({"jokes": []})
