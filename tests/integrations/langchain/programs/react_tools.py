"""ReAct with parallel tools that call the model themselves; which tools run is fixed, whatever it answers."""

from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

EXPECTED: dict[str, tuple[str, ...]] = {
    "Which city is larger?": (),
    "How many live in Oslo?": ("Which city is larger?",),
    "How many live in Rome?": ("Which city is larger?",),
    "What is known of Oslo?": ("Which city is larger?",),
    "Check what is known of Oslo.": ("What is known of Oslo?",),
    "Now answer.": ("Check what is known of Oslo.", "How many live in Oslo?", "How many live in Rome?"),
}
TOOL_CALLS = [
    ToolCall(name="count", args={"city": "Oslo"}, id="1"),
    ToolCall(name="count", args={"city": "Rome"}, id="2"),
    ToolCall(name="describe", args={"city": "Oslo"}, id="3"),
]


def build(model: ChatOpenAI) -> Any:
    @tool
    def count(city: str) -> str:
        """Count the people of a city."""
        return str(model.invoke(f"How many live in {city}?").content)

    @tool
    def describe(city: str) -> str:
        """Describe a city."""
        model.invoke(f"What is known of {city}?")
        return str(model.invoke(f"Check what is known of {city}.").content)

    def agent(state: MessagesState) -> dict[str, Any]:
        if not any(isinstance(message, ToolMessage) for message in state["messages"]):
            reply = model.invoke(state["messages"])
            return {"messages": [AIMessage(content=reply.content, tool_calls=TOOL_CALLS)]}
        return {"messages": [model.invoke([*state["messages"], HumanMessage("Now answer.")])]}

    graph = StateGraph(MessagesState)
    graph.add_node("agent", agent)
    graph.add_node("tools", ToolNode([count, describe]))
    graph.add_edge(START, "agent")
    graph.add_conditional_edges("agent", tools_condition)
    graph.add_edge("tools", "agent")
    return graph.compile(name="react")


def run(base_url: str, model: str) -> Any:
    # LangChain keeps its HTTP clients for good, and with them their connections.
    headers = {"Connection": "close"}
    chat = ChatOpenAI(
        base_url=base_url, api_key="key", model=model, max_tokens=8, temperature=0, default_headers=headers
    )
    return build(chat).invoke({"messages": [HumanMessage("Which city is larger?")]})
