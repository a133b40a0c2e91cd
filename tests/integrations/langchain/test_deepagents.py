"""Deep agents: subagents that an agent starts by a tool are branches of its program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("deepagents", reason="deepagents is not installed")

from deepagents import create_deep_agent
from langchain_openai import ChatOpenAI

import autellix
from autellix.testing import RecordingBackend, tool_call

TASKS = {"north": "Look north.", "south": "Look south."}
QUESTION = "Where do swallows go?"


def answer(body: Mapping[str, Any]) -> Any:
    """Start a subagent for each task, then answer; a subagent answers at once."""
    said = [message.get("content") for message in body["messages"] if message["role"] == "user"]
    if any(task in str(said) for task in TASKS.values()):
        return "seen"
    done = sum(message["role"] == "tool" for message in body["messages"])
    if done >= len(TASKS):
        return "south"
    task = list(TASKS.values())[done]
    return tool_call(("task", {"description": task, "subagent_type": "general-purpose"}))


@pytest.mark.usefixtures("sdk")
def test_subagents_are_calls_of_their_agents_program(backend: RecordingBackend) -> None:
    backend.answer = answer
    autellix.configure(backend.url)
    model = ChatOpenAI(model="m", base_url=backend.url, api_key="unused", max_retries=0)
    with autellix.program("deep"):
        agent = create_deep_agent(model=model)
        result = agent.invoke({"messages": [{"role": "user", "content": QUESTION}]})

    calls = backend.recorded
    assert result["messages"][-1].content == "south"
    assert len(calls) == 2 * len(TASKS) + 1
    assert {call.program_name for call in calls} == {"deep"}
    assert len({call.program_id for call in calls}) == 1
    # One after the other: each call follows the one before it.
    assert [call.parents for call in calls] == [(), *((call.call_id,) for call in calls[:-1])]
