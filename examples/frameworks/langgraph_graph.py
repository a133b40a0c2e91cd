"""LangGraph: `pip install langgraph langchain-openai git+https://github.com/autellix/autellix`."""

from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph

import autellix  # the only line to add

model = ChatOpenAI(model="smollm2", base_url="http://127.0.0.1:8000/v1", api_key="unused")


def step(state: MessagesState):
    """Answer what has been said so far."""
    return {"messages": [model.invoke(state["messages"]), ("user", "Go on.")]}


builder = StateGraph(MessagesState).add_node("plan", step).add_node("write", step)
graph = builder.add_edge(START, "plan").add_edge("plan", "write").compile(name="essay")
print(graph.invoke({"messages": [("user", "Write about the sea.")]})["messages"][-2].text)
