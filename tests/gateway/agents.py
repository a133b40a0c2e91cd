"""Agent clients that send no ids: their bodies, first and after an answer, with the real structure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.engine import CHAT_PATH, MESSAGES_PATH, RESPONSES_PATH

SYSTEM, TASK, RESULT = "You are a careful agent.", "Fix the failing test.", "3 lines"
PARAMETERS = {
    "type": "object",
    # One value, which a model without sense also finds an end of.
    "properties": {"name": {"enum": ["notes.txt"]}},
    "required": ["name"],
    "additionalProperties": False,
}
Body = dict[str, Any]
Tools = list[dict[str, Any]]


def chat_tool(name: str = "read") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": "", "parameters": PARAMETERS}}


def response_tool(name: str = "read") -> dict[str, Any]:
    return {"type": "function", "name": name, "parameters": PARAMETERS, "strict": False}


def message_tool(name: str = "read") -> dict[str, Any]:
    return {"name": name, "description": "", "input_schema": PARAMETERS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """One client: its path, the body of its first call, and that of the call after an answer."""

    path: str
    first: Callable[[], Body]
    next: Callable[[Body, Body], Body]
    """Takes the last body and its answer."""
    is_streaming: bool = False


@dataclass(slots=True)
class Task:
    """One task of an agent: what it sends and what it gets."""

    agent: Agent
    body: Body = field(init=False)

    def __post_init__(self) -> None:
        self.body = self.agent.first() | {"model": "m", "stream": self.agent.is_streaming}

    def take(self, answer: bytes) -> None:
        """Read an answer, whole or as a stream, and go on to the next call."""
        whole = joined(answer, self.agent.path) if self.agent.is_streaming else json.loads(answer)
        self.body = self.agent.next(self.body, whole)


def joined(stream: bytes, path: str) -> Body:
    """Return the answer that a client puts together from a stream."""
    events = list(_events(stream))
    if path == RESPONSES_PATH:
        response: Body = events[-1]["response"]
        return response
    if path == MESSAGES_PATH:
        starts = [event["content_block"] for event in events if event["type"] == "content_block_start"]
        return {"content": starts}
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ()) if "id" in call]
    return {"choices": [{"message": {"role": "assistant", "content": "", "tool_calls": calls}}]}


def _events(stream: bytes) -> Iterator[Any]:
    for line in stream.splitlines():
        if line.startswith(b"data: {"):
            yield json.loads(line.removeprefix(b"data: "))


# Chat completions


def _chat(*messages: Body, tools: Tools | None = None) -> Callable[[], Body]:
    return lambda: {"messages": list(messages), "tools": [chat_tool()] if tools is None else tools}


def _answered(answer: Body) -> list[Body]:
    """Return the assistant's message, and a result for each of its tool calls."""
    message = answer["choices"][0]["message"]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": RESULT} for call in message["tool_calls"]
    ]
    return [message, *results]


def _chat_next(body: Body, answer: Body) -> Body:
    return {**body, "messages": [*body["messages"], *_answered(answer)]}


def _aider_next(body: Body, answer: Body) -> Body:
    """Move the files to the end and rewrite the examples: nothing before the answer stays as it was."""
    count = len(body["messages"])
    examples = {"role": "user", "content": f"Examples, {count}"}
    files = {"role": "user", "content": f"These are the files now, {count}: ..."}
    kept = [message for message in body["messages"] if "tool_call_id" in message or "tool_calls" in message]
    return {**body, "messages": [body["messages"][0], examples, *kept, *_answered(answer), files]}


def _cline_next(body: Body, answer: Body) -> Body:
    """Leave out what the model wrote beside its tool calls, and add the environment at the end."""
    message, *results = _answered(answer)
    environment = {"role": "user", "content": [{"type": "text", "text": "<environment_details/>"}]}
    return {**body, "messages": [*body["messages"], {**message, "content": None}, *results, environment]}


_system = {"role": "system", "content": SYSTEM}
_user = {"role": "user", "content": TASK}
_parts = {"role": "user", "content": [{"type": "text", "text": TASK}]}

# Responses


def _respond(*items: Body, **fields: Any) -> Callable[[], Body]:
    return lambda: {"input": list(items), "tools": [response_tool()], **fields}


def _results(answer: Body) -> list[Body]:
    calls = [item for item in answer["output"] if item["type"] == "function_call"]
    return [{"type": "function_call_output", "call_id": call["call_id"], "output": RESULT} for call in calls]


def _respond_next(body: Body, answer: Body) -> Body:
    return {**body, "input": [*body["input"], *answer["output"], *_results(answer)]}


def _references_next(body: Body, answer: Body) -> Body:
    """Refer to the items that the server has stored."""
    items = [{"type": "item_reference", "id": item["id"]} for item in answer["output"]]
    return {**body, "input": [*body["input"], *items, *_results(answer)]}


def _previous_next(body: Body, answer: Body) -> Body:
    return {**body, "previous_response_id": answer["id"], "input": _results(answer)}


_input = {"role": "user", "content": [{"type": "input_text", "text": TASK}]}

# Messages


def _message(*messages: Body) -> Callable[[], Body]:
    system = [{"type": "text", "text": SYSTEM}]
    return lambda: {
        "max_tokens": 64,
        "system": system,
        "messages": list(messages),
        "tools": [message_tool()],
    }


def _message_next(body: Body, answer: Body) -> Body:
    uses = [part for part in answer["content"] if part["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": use["id"], "content": RESULT} for use in uses]
    reply = [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": results}]
    return {**body, "messages": [*body["messages"], *reply]}


AGENTS = {
    "aider with tools": Agent(
        path=CHAT_PATH, first=_chat(_system, _user), next=_aider_next, is_streaming=True
    ),
    "mini-swe-agent": Agent(path=CHAT_PATH, first=_chat(_system, _user), next=_chat_next),
    "Qwen Code": Agent(
        path=CHAT_PATH,
        first=_chat(
            _system,
            {"role": "user", "content": "This is the workspace."},
            {"role": "assistant", "content": "Got it. Thanks for the context!"},
            _parts,
            tools=[chat_tool("read"), chat_tool("agent")],
        ),
        next=_chat_next,
        is_streaming=True,
    ),
    "Cline": Agent(path=CHAT_PATH, first=_chat(_system, _parts), next=_cline_next, is_streaming=True),
    "Vercel AI SDK, chat": Agent(
        path=CHAT_PATH, first=_chat(_system, _user), next=_chat_next, is_streaming=True
    ),
    "Vercel AI SDK, messages": Agent(
        path=MESSAGES_PATH, first=_message(_parts), next=_message_next, is_streaming=True
    ),
    "Vercel AI SDK, responses": Agent(
        path=RESPONSES_PATH, first=_respond(_system, _input), next=_references_next, is_streaming=True
    ),
    "Anthropic's SDK": Agent(path=MESSAGES_PATH, first=_message(_user), next=_message_next),
    "OpenAI Agents, responses": Agent(
        path=RESPONSES_PATH, first=_respond(_user, instructions=SYSTEM), next=_respond_next
    ),
    "OpenAI Agents, chat": Agent(path=CHAT_PATH, first=_chat(_system, _user), next=_chat_next),
    "LangGraph.js, responses": Agent(
        path=RESPONSES_PATH,
        first=_respond({"type": "message", **_input}),
        next=_respond_next,
        is_streaming=True,
    ),
    "openai-node with previous_response_id": Agent(
        path=RESPONSES_PATH, first=_respond(_user), next=_previous_next, is_streaming=True
    ),
}
"""By the names of the clients."""


def fork(body: Body) -> Body:
    """Return a sub-agent of Qwen Code: its parent's transcript, with fewer tools and an order at the end."""
    order = {"role": "user", "content": "You are a fork. Count the lines."}
    return {**body, "messages": [*body["messages"], order], "tools": [chat_tool("read")]}
