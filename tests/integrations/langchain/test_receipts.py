"""The receipts of calls, in the messages of LangChain and LangGraph."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import autellix

if TYPE_CHECKING:
    from autellix.testing import RecordingBackend


def check(result: Any, backend: RecordingBackend) -> None:
    found = autellix.receipt(result)
    assert found is not None
    assert found.call_id == backend.recorded[-1].call_id


@pytest.mark.usefixtures("sdk")
def test_receipt_of_a_message(chat: Any, backend: RecordingBackend) -> None:
    autellix.configure(backend.url)
    check(chat.invoke("x"), backend)
    check(asyncio.run(chat.ainvoke("x")), backend)


@pytest.mark.usefixtures("sdk")
def test_receipt_of_a_stream(chat: Any, backend: RecordingBackend) -> None:
    autellix.configure(backend.url)
    chunks = list(chat.stream("x"))
    assert [chunk.chunk_position for chunk in chunks].count("last") == 1
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert whole.content == "hello"
    check(whole, backend)
    for chunk in chat.stream("another"):
        whole += chunk
    assert whole.content == "hellohello"
    check(whole, backend)

    async def run() -> Any:
        return [chunk async for chunk in chat.astream("x")]

    check(asyncio.run(run()), backend)


@pytest.mark.usefixtures("sdk")
def test_receipt_of_a_graph(chat: Any, backend: RecordingBackend) -> None:
    graphs = pytest.importorskip("langgraph.graph")
    autellix.configure(backend.url)
    graph = graphs.StateGraph(graphs.MessagesState)
    graph.add_node("ask", lambda state: {"messages": [chat.invoke(state["messages"])]})
    graph.add_edge(graphs.START, "ask")
    result = graph.compile().invoke({"messages": [("user", "x")]})
    check(result, backend)


@pytest.mark.usefixtures("sdk")
def test_no_receipt_from_another_server(chat: Any, backend: RecordingBackend) -> None:
    backend.is_autellix = False
    message = chat.invoke("x")
    assert autellix.receipt(message) is None
    assert "autellix" not in message.response_metadata
